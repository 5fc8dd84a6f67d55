"""Managed retrievers: one Deployment and one Service per endpoint."""

from raggrpo_api import names
from raggrpo_api.job import Metadata
from raggrpo_api.spec.retrieval import SERVED_PATHS, ManagedRetriever, RetrievalEndpoint
from raggrpo_api.status import PodRole
from raggrpo_api.trainer_config import TrainerConfig
from raggrpo_operator.core.lifecycle.actions import StartRetriever
from raggrpo_operator.core.sizing.size import pod

from .cluster_settings import ClusterSettings
from .metadata import Manifest, child_metadata
from .pods import container, literal, plain_env, pod_labels, pod_spec


def render_retriever(
    job: Metadata, settings: ClusterSettings, action: StartRetriever
) -> tuple[Manifest, Manifest]:
    """Return Deployment and Service of a managed endpoint."""
    plan = action.plan
    name = names.retriever_name(job.name, action.name)
    own = {names.LABEL_RETRIEVER: action.name}
    selector = {names.LABEL_JOB: job.name, **own}
    sized = pod(plan.sizing, PodRole.RETRIEVER, action.name)
    server = container(
        plan,
        settings,
        "retriever",
        sizing=sized,
        env=plain_env({}),
        read_only_claims=True,
    ) | {
        "command": _command(action.managed),
        "ports": [{"name": "http", "containerPort": names.RETRIEVER_PORT}],
        # The port opens before the index is loaded; only /healthz shows when it is ready.
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
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    labels = pod_labels(job, PodRole.RETRIEVER) | own
    serving = pod_spec(plan, settings, server, sizing=sized) | {"terminationGracePeriodSeconds": 10}
    deployment: Manifest = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": child_metadata(job, name, labels=own),
        "spec": {
            "replicas": 1,
            "revisionHistoryLimit": 1,
            "selector": {"matchLabels": selector},
            "strategy": {"type": "Recreate"},
            "template": {"metadata": {"labels": labels}, "spec": serving},
        },
    }
    port = {"name": "http", "protocol": "TCP", "port": names.RETRIEVER_PORT, "targetPort": "http"}
    service: Manifest = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": child_metadata(job, name, labels=own),
        "spec": {
            "type": "ClusterIP",
            "selector": selector,
            "ports": [port],
        },
    }
    return deployment, service


def with_retriever_urls(config: TrainerConfig) -> TrainerConfig:
    """Return the configuration with the URLs of the job's managed retrievers filled in."""
    job = config.attempt

    def filled(endpoint: RetrievalEndpoint) -> RetrievalEndpoint:
        if endpoint.managed is None:
            return endpoint
        name = names.retriever_name(job.job_name, endpoint.name)
        host = f"{name}.{job.namespace}.svc:{names.RETRIEVER_PORT}"
        url = f"http://{host}{SERVED_PATHS[endpoint.protocol]}"
        return endpoint.model_copy(update={"url": url, "managed": None})

    endpoints = [filled(each) for each in config.retrieval.endpoints]
    retrieval = config.retrieval.model_copy(update={"endpoints": endpoints})
    return config.model_copy(update={"retrieval": retrieval})


def _command(managed: ManagedRetriever) -> list[str]:
    command = ["python", "-m", "raggrpo_retriever", "--corpus", managed.corpus, "--index"]
    command += [str(managed.index), "--host", "0.0.0.0", "--port", str(names.RETRIEVER_PORT)]
    command += ["--vectors", managed.vectors] if managed.vectors else []
    return [literal(word) for word in command]
