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
from .metadata import Manifest
from .pods import claim_volume, container, literal, plain_env, pod_spec
from .service_pods import deployment, server_ports_and_probes, service


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
    # The port opens before the index is loaded; /healthz reports readiness.
    start_seconds = plan.spec.recovery.deadlines.provisioning_seconds
    server |= {"command": _command(action.managed)} | server_ports_and_probes(
        names.RETRIEVER_PORT, "/healthz", start_seconds
    )
    pod = pod_spec(plan, settings, server, sizing=sized)
    name = names.retriever_name(job.name, job.uid, action.name)
    return deployment(job, name, PodRole.RETRIEVER, _label(action.name), pod)


def render_service(job: Metadata, endpoint: str, name: str = "") -> Manifest:
    """Return the Service of a managed retriever; `name` replaces the default name."""
    default = names.retriever_name(job.name, job.uid, endpoint)
    return service(job, name or default, _label(endpoint), names.RETRIEVER_PORT)


def _label(endpoint: str) -> dict[str, str]:
    return {names.LABEL_RETRIEVER: endpoint}


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
