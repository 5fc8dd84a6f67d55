"""Managed retrievers: a Deployment and a Service per endpoint."""

from raggrpo_api import names
from raggrpo_api.job import Metadata
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.spec.retrieval import ManagedRetriever
from raggrpo_api.status.sizing import PodRole
from raggrpo_operator.core.lifecycle.actions import StartRetriever
from raggrpo_operator.core.sizing.size import sizing_for
from raggrpo_operator.core.spec.path_fields import is_within, volume_of
from raggrpo_operator.core.spec.retriever_command import retriever_arguments

from .cluster_settings import ClusterSettings
from .metadata import Manifest, child_metadata
from .pods import claim_volume, container, literal, plain_env, pod_labels, pod_spec


def render_deployment(job: Metadata, settings: ClusterSettings, action: StartRetriever) -> Manifest:
    """Return the Deployment of a managed retriever."""
    plan = action.plan
    sized = sizing_for(plan.sizing, PodRole.RETRIEVER, action.name)
    server = container(
        plan,
        settings,
        names.RETRIEVER_CONTAINER,
        sizing=sized,
        env=plain_env({}),
        read_only_claims=True,
    )
    server["volumeMounts"] += _index_mounts(plan.spec, action.managed)
    server |= {
        "command": _command(action.managed),
        "ports": [{"name": "http", "containerPort": names.RETRIEVER_PORT}],
        # The port opens before the index is loaded; /healthz reports readiness.
        "readinessProbe": {
            "httpGet": {"path": "/healthz", "port": "http"},
            "periodSeconds": 5,
            "timeoutSeconds": 3,
        },
        "livenessProbe": {
            "tcpSocket": {"port": "http"},
            "initialDelaySeconds": 60,
            "periodSeconds": 20,
            "failureThreshold": 6,
        },
    }
    labels = pod_labels(job, PodRole.RETRIEVER) | _retriever_label(action.name)
    serving = pod_spec(plan, settings, server, sizing=sized) | {"terminationGracePeriodSeconds": 10}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(job, action.name),
        "spec": {
            "replicas": 1,
            "revisionHistoryLimit": 1,
            "selector": {"matchLabels": _selector(job, action.name)},
            "strategy": {"type": "Recreate"},
            "template": {"metadata": {"labels": labels}, "spec": serving},
        },
    }


def render_service(job: Metadata, endpoint: str, name: str = "") -> Manifest:
    """Return the Service of a managed retriever; `name` replaces the default name."""
    port = {"name": "http", "protocol": "TCP", "port": names.RETRIEVER_PORT, "targetPort": "http"}
    metadata = _metadata(job, endpoint)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata | ({"name": name} if name else {}),
        "spec": {
            "type": "ClusterIP",
            "ipFamilyPolicy": "PreferDualStack",
            "selector": _selector(job, endpoint),
            "ports": [port],
        },
    }


def service_address(namespace: str, service: str) -> str:
    """Return the base URL of a managed retriever's Service."""
    return f"http://{service}.{namespace}.svc:{names.RETRIEVER_PORT}"


def _metadata(job: Metadata, endpoint: str) -> Manifest:
    name = names.retriever_name(job.name, job.uid, endpoint)
    return child_metadata(job, name, labels=_retriever_label(endpoint))


def _retriever_label(endpoint: str) -> dict[str, str]:
    return {names.LABEL_RETRIEVER: endpoint}


def _selector(job: Metadata, endpoint: str) -> dict[str, str]:
    return {names.LABEL_JOB: job.name, **_retriever_label(endpoint)}


def _command(managed: ManagedRetriever) -> list[str]:
    command = ["python", "-m", "raggrpo_retriever", *retriever_arguments(managed)]
    command += ["--host", "::", "--port", str(names.RETRIEVER_PORT)]
    return [literal(word) for word in command]


def _index_mounts(spec: JobSpec, managed: ManagedRetriever) -> list[Manifest]:
    """Return the writable mount of the index folder (created by preflight), or [] without one."""
    volume = volume_of(managed.index_path, spec.volumes) if managed.embeds else None
    if volume is None or is_within(volume.mount_path, managed.index_path):
        return []
    inside = managed.index_path[len(volume.mount_path.rstrip("/")) + 1 :].rstrip("/")
    path = managed.index_path.rstrip("/")
    return [{"name": claim_volume(volume.name), "mountPath": path, "subPath": inside}]
