"""The RayCluster of a job: a head without GPUs, which runs the driver, and worker pods.

The operator creates a RayCluster once and never applies it: `workerGroupSpecs` is an atomic list,
so an apply would remove the fields that a queueing system has added.
"""

from raggrpo_api import names
from raggrpo_api.job import Metadata
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.status.sizing import PodRole, PodSizing
from raggrpo_operator.core.lifecycle.actions import CreateCluster
from raggrpo_operator.core.sizing.grace import HEAD_RETURN_SECONDS
from raggrpo_operator.core.sizing.size import sizing_for
from raggrpo_operator.core.spec.ray_variables import RAY_VARIABLES
from raggrpo_operator.core.spec.world import SPARE_CPUS

from .agent import gateway_url
from .cluster_settings import ClusterSettings
from .metadata import Manifest, child_metadata
from .pods import container, pod_labels, pod_spec, trainer_env
from .token_secret import TokenRef

GCS_PORT = 6379
"""Port of the GCS, to which Ray nodes connect; set by KubeRay."""
AGENT_PORT = 52365
"""HTTP port of the Ray agent on every node."""
MAX_WEIGHT = 100
"""Maximum weight of a scheduling preference."""
OVERWRITE_COMMAND = "ray.io/overwrite-container-cmd"
"""Annotation with which KubeRay keeps our command and sets KUBERAY_GEN_RAY_START_CMD to its own."""
RAY_COMMAND = f"ulimit -n 65536; exec python -m {names.RAY_START} $KUBERAY_GEN_RAY_START_CMD"
SHUTDOWN_SECONDS = 15
"""Seconds for Ray to exit after the preStop hook has stopped waiting for the driver."""


def render_ray_cluster(
    job: Metadata, settings: ClusterSettings, action: CreateCluster, token: TokenRef
) -> Manifest:
    """Return the RayCluster, whose pods have a longer grace period than the driver."""
    plan = action.plan
    labels = {names.LABEL_CLUSTER: str(action.number)}
    queue = plan.spec.scheduling.queue_name
    groups = [each for each in plan.sizing.pods if each.role in (PodRole.TRAINER, PodRole.ROLLOUT)]
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": child_metadata(
            job,
            action.name,
            labels=labels | ({names.LABEL_QUEUE: queue} if queue else {}),
            annotations={
                names.ANNOTATION_TOKEN_KEY: token.key_id,
                names.ANNOTATION_HEAD_RETURNS: "true",
            },
        ),
        "spec": {
            "rayVersion": action.ray_version or settings.ray_version,
            "authOptions": {"mode": "token", "secretName": token.secret},
            "headGroupSpec": _head(job, settings, action, labels),
            "workerGroupSpecs": [_group(job, settings, action, each, labels) for each in groups],
        },
    }


def _head(
    job: Metadata, settings: ClusterSettings, action: CreateCluster, labels: dict[str, str]
) -> Manifest:
    plan = action.plan
    sizing = sizing_for(plan.sizing, PodRole.HEAD)
    store = f"{plan.spec.monitoring.log_dir}/{names.HEADS_DIR}/{job.uid}/{action.name}"
    own = {names.ENV_HEAD_STORE: store, **_ray_env(action)}
    agent = plan.spec.rollout.agent
    if agent is not None and agent.is_service:
        own[names.ENV_GATEWAY_URL] = gateway_url(job)
    env = trainer_env(plan.spec, own, for_driver=True)
    ray_head = container(
        plan, settings, names.HEAD_CONTAINER, sizing=sizing, env=env, for_driver=True
    ) | {
        "ports": [
            {"name": "gcs-server", "containerPort": GCS_PORT},
            {"name": "dashboard", "containerPort": names.DASHBOARD_PORT},
            {"name": "progress", "containerPort": names.PROGRESS_PORT},
        ],
        "readinessProbe": _probe({"tcpSocket": {"port": GCS_PORT}}, failures=3),
        "command": ["/bin/sh", "-c", RAY_COMMAND],
        "lifecycle": _lifecycle(action.grace_seconds, "localhost"),
    }
    return {
        "serviceType": "ClusterIP",
        # Not headless: the address must survive the head pod, since gRPC rarely re-resolves names.
        "headService": {"spec": {"publishNotReadyAddresses": False}},
        "rayStartParams": {
            "dashboard-host": "0.0.0.0",
            "num-cpus": "0",
            "num-gpus": "0",
            "object-store-memory": str(sizing.object_store),
        },
        "template": {
            "metadata": {
                "labels": pod_labels(job, PodRole.HEAD) | labels,
                "annotations": {OVERWRITE_COMMAND: "true"},
            },
            "spec": pod_spec(plan, settings, ray_head, sizing=sizing, for_driver=True)
            | _grace_and_affinity(action),
        },
    }


def _group(
    job: Metadata,
    settings: ClusterSettings,
    action: CreateCluster,
    sizing: PodSizing,
    labels: dict[str, str],
) -> Manifest:
    plan = action.plan
    env = trainer_env(plan.spec, _ray_env(action))
    ray_worker = container(plan, settings, names.WORKER_CONTAINER, sizing=sizing, env=env) | {
        # The agent of a busy node may respond slowly; a few failures must not make the pod unready.
        "readinessProbe": _probe(
            {"httpGet": {"port": AGENT_PORT, "path": "/api/local_raylet_healthz"}}, failures=10
        ),
        "command": ["/bin/sh", "-c", RAY_COMMAND],
        "lifecycle": _lifecycle(action.grace_seconds, "$FQ_RAY_IP"),
    }
    return {
        "groupName": str(sizing.role),
        "replicas": sizing.replicas,
        "minReplicas": sizing.replicas,
        "maxReplicas": sizing.replicas,
        "rayStartParams": {
            "num-cpus": str(_logical_cpus(plan.spec, sizing)),
            "num-gpus": str(sizing.gpus),
            "object-store-memory": str(sizing.object_store),
        },
        "template": {
            "metadata": {
                "labels": pod_labels(job, sizing.role) | labels,
                "annotations": {OVERWRITE_COMMAND: "true"},
            },
            "spec": pod_spec(plan, settings, ray_worker, sizing=sizing)
            | _grace_and_affinity(action),
        },
    }


def _probe(handler: Manifest, *, failures: int) -> Manifest:
    """Return a probe that runs every second, without KubeRay's default initial delay of 10 s."""
    return handler | {"periodSeconds": 1, "timeoutSeconds": 1, "failureThreshold": failures}


def _grace_and_affinity(action: CreateCluster) -> Manifest:
    """Return the grace period of a pod and its affinity away from nodes that have failed."""
    fields: Manifest = {"terminationGracePeriodSeconds": action.grace_seconds + SHUTDOWN_SECONDS}
    if not action.avoided_nodes:
        return fields
    # Only preferred: a required affinity could rule out the last node that fits the pod. The term
    # matches the node's name, from which the label kubernetes.io/hostname may differ.
    preferred = [
        {
            "weight": MAX_WEIGHT,
            "preference": {
                "matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": [node]}]
            },
        }
        for node in action.avoided_nodes
    ]
    return fields | {
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    }


def _logical_cpus(spec: JobSpec, sizing: PodSizing) -> int:
    """Return the logical CPUs of a Ray node: one per possible rank and engine, plus SPARE_CPUS."""
    if sizing.role is PodRole.ROLLOUT:
        return 1 + SPARE_CPUS
    ranks = sizing.gpus or spec.resources.ranks
    engines = max(1, sizing.gpus)
    return ranks + engines + SPARE_CPUS


def _ray_env(action: CreateCluster) -> dict[str, str]:
    return {
        names.ENV_PROGRESS_PORT: str(names.PROGRESS_PORT),
        **RAY_VARIABLES,
        # Ray's default kills a stopped driver after 3 s.
        "RAY_JOB_STOP_WAIT_TIME_S": str(action.grace_seconds),
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray tolerates five failed checks: this period detects a lost node after 8 s, not 16.
        "RAY_health_check_period_ms": "1000",
        "RAY_gcs_rpc_server_reconnect_timeout_s": str(HEAD_RETURN_SECONDS),
    }


def _lifecycle(grace_seconds: int, head: str) -> Manifest:
    """Return the preStop hook that makes the driver save; KubeRay sets FQ_RAY_IP."""
    hook = "exec python -m raggrpo_trainer.pre_stop"
    command = f"{hook} --head {head} --seconds {grace_seconds} --end-ray"
    return {"preStop": {"exec": {"command": ["/bin/sh", "-c", command]}}}
