"""Convert Kubernetes objects to the observations that `decide` reads. Pure."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from ipaddress import ip_address
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from raggrpo_api import names
from raggrpo_api.fields.base import ClusterNumber
from raggrpo_api.fields.text import error_first, one_line
from raggrpo_api.job import RagGrpoJob
from raggrpo_api.spec.agent import AgentSpec
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.job_status import ClusterStatus
from raggrpo_api.status.reasons import ConditionReason
from raggrpo_api.status.sizing import PodRole
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.preflight import PreflightResult
from raggrpo_api.trainer.staging import PushOutcome, StagingResult
from raggrpo_operator.core.lifecycle.before_attempt.services import AGENT
from raggrpo_operator.core.lifecycle.observed import (
    ClusterObserved,
    PreflightObserved,
    PushObserved,
    ServiceObserved,
    StagingObserved,
)
from raggrpo_operator.core.manifests.service_pods import service_address
from raggrpo_operator.core.spec.images import image_id
from raggrpo_operator.core.state.conditions import parse_timestamp
from raggrpo_operator.kube.client import is_quota_rejection
from raggrpo_operator.kube.cluster_objects import (
    POD_TEMPLATE_LABEL,
    condition_of,
    controller_of,
    is_being_deleted,
    label_number,
    labels_of,
    section,
)
from raggrpo_operator.kube.pod_evidence import (
    OUT_OF_MEMORY,
    Loss,
    StartProblem,
    is_head,
    main_status,
    out_of_memory_text,
)

Manifest = Mapping[str, Any]
RayCluster = TypeVar("RayCluster", bound=Manifest)
Deployment = TypeVar("Deployment", bound=Manifest)
Task = TypeVar("Task", PreflightObserved, StagingObserved, PushObserved)
CLOCK_SKEW_SECONDS = 60
"""Maximum seconds by which the clock of the API server is assumed to be ahead."""
PHASES_WITHOUT_DRIVER = frozenset({"Pending", "Succeeded", "Failed"})
"""Pod phases in which no driver can be running."""
COMMAND_MISSING_REASONS = frozenset({"StartError", "ContainerCannotRun"})
"""Reasons with which a container terminates if its image does not have the command."""
StartCheck = Callable[[Manifest], tuple[StartProblem | None, bool]]
"""Pod → its start problem, and whether that is final."""


def cluster_number(ray_cluster: Manifest, current: ClusterStatus) -> ClusterNumber | None:
    """Return the Ray cluster's number within its job, or None if it has no number label."""
    if ray_cluster["metadata"]["name"] == current.name:
        return current.number
    number = label_number(ray_cluster, names.LABEL_CLUSTER)
    return None if number is None else ClusterNumber(number)


def oldest_cluster(
    ray_clusters: Collection[RayCluster], current: ClusterStatus
) -> tuple[ClusterNumber, RayCluster] | None:
    """Return the cluster with the lowest number, which must be gone before a new cluster starts."""
    numbered = [
        (number, each["metadata"]["name"] != current.name, each)
        for each in ray_clusters
        if (number := cluster_number(each, current)) is not None
    ]
    if not numbered:
        return None
    number, _, oldest = min(numbered, key=lambda entry: entry[:2])
    return number, oldest


def is_head_ready(ray_cluster: Manifest) -> bool:
    """Return whether the head is ready now; `RayClusterProvisioned` stays True once it is set."""
    return condition_of(ray_cluster, "HeadPodReady").get("status") == "True"


def is_suspended(ray_cluster: Manifest) -> bool:
    """Return whether `spec.suspend` is true; only Kueue sets this field, never the operator."""
    return bool(ray_cluster.get("spec", {}).get("suspend"))


def are_workers_ready(ray_cluster: Manifest) -> bool:
    """Return whether all requested worker pods are ready."""
    groups = ray_cluster.get("spec", {}).get("workerGroupSpecs", [])
    expected = sum(each.get("replicas", 0) * each.get("numOfHosts", 1) for each in groups)
    return bool(ray_cluster.get("status", {}).get("readyWorkerReplicas", 0) >= expected)


def observed_cluster(
    number: ClusterNumber,
    ray_cluster: Manifest,
    *,
    losses: Sequence[Loss],
    problem: StartProblem | None,
    problem_is_final: bool,
    is_reachable: bool,
    all_pods_live: bool,
) -> ClusterObserved:
    """Return the Ray cluster as `decide` reads it.

    `losses` are the losses during the current attempt, most significant first. `is_reachable` is
    whether the Jobs API of the head responds. `all_pods_live` is whether no pod has exited or is
    being deleted.

    """
    name = ray_cluster["metadata"]["name"]
    if is_suspended(ray_cluster) and not is_being_deleted(ray_cluster):
        queue = labels_of(ray_cluster).get(names.LABEL_QUEUE)
        why = f"waits in queue {queue}" if queue else "suspended by its spec.suspend"
        return ClusterObserved(number, is_queued=True, message=f"RayCluster {name}: {why}")
    head_losses = [each for each in losses if each.is_head]
    if head_losses:
        first = _root_loss(head_losses[0], losses)
        return ClusterObserved(
            number,
            is_lost=True,
            may_return=_restarts_head(ray_cluster) and first.cause is Cause.HEAD_LOST,
            cause=first.cause,
            short_of=first.short_of,
            node=first.node,
            message=first.message,
        )
    if is_being_deleted(ray_cluster):
        message = f"RayCluster {name} is being deleted"
        return ClusterObserved(number, is_lost=True, cause=Cause.HEAD_LOST, message=message)
    if losses:
        first = losses[0]
        return ClusterObserved(
            number,
            is_reachable,
            cause=first.cause,
            short_of=first.short_of,
            node=first.node,
            message=first.message,
        )
    if is_reachable and all_pods_live and are_workers_ready(ray_cluster):
        return ClusterObserved(number, is_ready=True)
    if problem is not None:
        cause_of_start = Cause.START_FAILED if problem_is_final else None
        return ClusterObserved(
            number, cause=cause_of_start, message=problem.message, waiting_reason=problem.reason
        )
    if (failure := replica_failure(ray_cluster)) is not None:
        return ClusterObserved(number, message=failure[1], waiting_reason=failure[0])
    return ClusterObserved(number)


def replica_failure(owner: Manifest) -> tuple[ConditionReason, str] | None:
    """Return why a RayCluster or Deployment cannot create pods, or None if it can."""
    condition = condition_of(owner, "ReplicaFailure")
    if condition.get("status") != "True":
        return None
    message = f"{condition.get('reason', '')}: {one_line(condition.get('message', ''), 1000)}"
    is_quota = is_quota_rejection(message)
    return ConditionReason.QUOTA_EXCEEDED if is_quota else ConditionReason.REPLICA_FAILURE, message


def _restarts_head(ray_cluster: Manifest) -> bool:
    """Return whether KubeRay replaces a lost head with one that restores the cluster's state."""
    annotations = ray_cluster["metadata"].get("annotations", {})
    return names.ANNOTATION_HEAD_RETURNS in annotations and not is_being_deleted(ray_cluster)


def image_ids(pods: Collection[Manifest]) -> tuple[str, ...]:
    """Return the distinct image IDs of Ray pods, starting with the head's."""
    ids = [
        image_id(str(main_status(pod).get("imageID", "")))
        for pod in sorted(pods, key=lambda pod: (not is_head(pod), _name(pod)))
    ]
    return tuple(dict.fromkeys(filter(None, ids)))


def cluster_with_orphaned_head(
    job: RagGrpoJob, pods: Collection[Manifest], now: datetime
) -> ClusterObserved | None:
    """Return the current cluster if its RayCluster is gone but its head pod may still run.

    The driver on that head may be saving a checkpoint in the folder that the next attempt would
    use. Worker pods are ignored, because only the driver saves. Pods past their grace period are
    ignored too, because a lost node never reports that its pods have exited.
    """
    attempts, cluster = job.status.attempts, job.status.cluster
    if not attempts or attempts[0].cause is None:
        return None
    for pod in filter(is_head, pods):
        if _is_controlled_by(pod, "RayCluster", cluster.name) and _may_run(pod, now):
            message = f"pod {_name(pod)} may still be saving a checkpoint"
            return ClusterObserved(cluster.number, is_lost=True, may_save=True, message=message)
    return None


def may_head_save(pods: Collection[Manifest], now: datetime) -> bool:
    """Return whether a terminating head pod may still run a driver that saves a checkpoint."""
    return any(is_head(pod) and is_being_deleted(pod) and _may_run(pod, now) for pod in pods)


def _is_controlled_by(pod: Manifest, kind: str, name: str) -> bool:
    """Return whether this object controls the pod. Labels are no proof: any user can set them."""
    owner = controller_of(pod)
    return (owner.get("kind"), owner.get("name")) == (kind, name)


def _may_run(pod: Manifest, now: datetime) -> bool:
    if pod.get("status", {}).get("phase") in PHASES_WITHOUT_DRIVER:
        return False
    if not is_being_deleted(pod):
        return True
    metadata = pod["metadata"]
    remaining = (parse_timestamp(metadata["deletionTimestamp"]) - now).total_seconds()
    # If more than the grace period remains, the operator's clock was set back.
    return (
        0 < remaining <= float(metadata.get("deletionGracePeriodSeconds") or 0) + CLOCK_SKEW_SECONDS
    )


def _root_loss(head: Loss, losses: Sequence[Loss]) -> Loss:
    """Return the most significant loss, or `head` if none is more significant.

    The status of a head that was deleted together with its workers does not contain a cause.
    """
    first = losses[0]
    return first if first.weight > head.weight else head


def are_all_live(pods: Collection[Manifest]) -> bool:
    """Return whether no pod of a Ray cluster is being deleted or has exited.

    KubeRay counts such a pod as ready for a while, and the preStop hook of a terminating pod would
    stop the next attempt too.
    """
    return not any(is_being_deleted(pod) or _has_exited(pod) for pod in pods)


def _has_exited(pod: Manifest) -> bool:
    return section(pod, "status").get("phase") in ("Succeeded", "Failed")


def observed_preflight(
    pods: Collection[Manifest], problem: StartProblem | None, problem_is_final: bool
) -> PreflightObserved | None:
    """Return the newest preflight pod as `decide` reads it, or None if there is none."""
    return _observed_pod(PreflightObserved, PreflightResult, pods, problem, problem_is_final)


def observed_staging(
    pods: Collection[Manifest], problem: StartProblem | None, problem_is_final: bool
) -> StagingObserved | None:
    """Return the newest staging pod as `decide` reads it, or None if there is none."""
    return _observed_pod(StagingObserved, StagingResult, pods, problem, problem_is_final)


def observed_push(
    pods: Collection[Manifest], problem: StartProblem | None, problem_is_final: bool
) -> PushObserved | None:
    """Return the newest push pod as `decide` reads it, or None if there is none."""
    return _observed_pod(PushObserved, PushOutcome, pods, problem, problem_is_final)


def running_address(pods: Collection[Manifest]) -> str | None:
    """Return the IP address of a running pod, for URLs, or None."""
    for pod in pods:
        status = section(pod, "status")
        if status.get("phase") == "Running" and not is_being_deleted(pod):
            with suppress(ValueError):
                address = ip_address(str(status.get("podIP")))
                return f"[{address}]" if address.version == 6 else str(address)
    return None


def _observed_pod(
    kind: Callable[..., Task],
    result: type[BaseModel],
    pods: Collection[Manifest],
    problem: StartProblem | None,
    problem_is_final: bool,
) -> Task | None:
    """Return the newest of the pods that run once and write a result, or None if there is none."""
    live = [pod for pod in pods if not is_being_deleted(pod)]
    if not live:
        return None
    pod = max(live, key=_creation_time)
    input_hash = labels_of(pod).get(names.LABEL_SPEC_HASH, "")
    terminated = _terminated_state(pod)
    if terminated is not None:
        return _exited_pod(kind, result, input_hash, pod, terminated)
    if pod.get("status", {}).get("phase") == "Failed":
        status = pod["status"]
        reason = one_line(f"{status.get('reason', 'Failed')}: {status.get('message', '')}", 512)
        return kind(input_hash, problem=f"pod {_name(pod)}: {reason}")
    if problem is None:
        return kind(input_hash)
    if problem_is_final:
        return kind(input_hash, problem=problem.message, cannot_start=True)
    return kind(input_hash, waiting_for=problem.message, waiting_reason=problem.reason)


def _exited_pod(
    kind: Callable[..., Task],
    result: type[BaseModel],
    input_hash: str,
    pod: Manifest,
    terminated: Manifest,
) -> Task:
    message = terminated.get("message") or ""
    if terminated.get("reason") == OUT_OF_MEMORY:
        problem = f"pod {_name(pod)} {out_of_memory_text(pod)}"
        return kind(input_hash, problem=problem, is_out_of_memory=True)
    try:
        return kind(input_hash, result.model_validate_json(message))
    except ValidationError:
        code, reason = terminated.get("exitCode"), terminated.get("reason", "")
        tail = error_first(message, 500)
        problem = (
            f"pod {_name(pod)} exited with exit code {code} ({reason}) without a result: {tail}"
        )
        return kind(input_hash, problem=problem, cannot_start=reason in COMMAND_MISSING_REASONS)


def observed_retrievers(
    deployments: Collection[Manifest], pods: Collection[Manifest], check_start: StartCheck
) -> tuple[ServiceObserved, ...]:
    """Return the job's managed retrievers as `decide` reads them."""
    return tuple(
        _service(n, each, names.RETRIEVER_PORT, pods, check_start)
        for n, each in _by_endpoint(deployments)
    )


def observed_agent(
    deployments: Collection[Manifest],
    agent: AgentSpec | None,
    pods: Collection[Manifest],
    check_start: StartCheck,
) -> ServiceObserved | None:
    """Return the container of the job's agent as `decide` reads it, or None if there is none."""
    container = agent.container if agent is not None else None
    port = container.port if container is not None else 0
    for each in agent_deployments(deployments):
        spec_hash = labels_of(each).get(names.LABEL_SPEC_HASH, "")
        return replace(_service(AGENT, each, port, pods, check_start), spec_hash=spec_hash)
    return None


def agent_deployments(deployments: Collection[Deployment]) -> list[Deployment]:
    """Return the Deployments of an agent's container that are not being deleted."""
    role = str(PodRole.AGENT)
    matches = [each for each in deployments if labels_of(each).get(names.LABEL_ROLE) == role]
    return [each for each in matches if not is_being_deleted(each)]


def service_names(deployments: Collection[Manifest]) -> dict[str, str]:
    """Return the Service names by endpoint; a Service has the name of its Deployment."""
    return {endpoint: _name(each) for endpoint, each in _by_endpoint(deployments)}


def _by_endpoint(deployments: Collection[Manifest]) -> Iterator[tuple[str, Manifest]]:
    for each in deployments:
        endpoint = labels_of(each).get(names.LABEL_RETRIEVER)
        if endpoint and not is_being_deleted(each):
            yield endpoint, each


def _service(
    name: str,
    deployment: Manifest,
    port: int,
    pods: Collection[Manifest],
    check_start: StartCheck,
) -> ServiceObserved:
    address = service_address(deployment["metadata"]["namespace"], _name(deployment), port)
    current = [pod for pod in pods if _is_of_current_template(pod, deployment)]
    restarts = sum(main_status(pod).get("restartCount", 0) for pod in current)
    service = ServiceObserved(name, address, restarts=restarts)
    if is_rolled_out(deployment):
        return replace(service, is_ready=True)
    for pod in current:
        if condition_of(pod, "Ready").get("status") == "True":
            continue
        start, is_final = check_start(pod)
        reason = start.reason if start is not None else None
        terminated = _terminated_state(pod, include_last=True)
        if terminated is not None:
            code, message = terminated.get("exitCode"), terminated.get("message", "")
            problem = f"pod {_name(pod)} exited with exit code {code}: {message}"
            is_of_data = code == ExitCode.DATA_ERROR and name != AGENT
            cause = Cause.DATA_ERROR if is_of_data else None
            return replace(service, problem=one_line(problem, 1000), cause=cause, reason=reason)
        if start is not None:
            cause = Cause.START_FAILED if is_final else None
            return replace(service, problem=start.message, cause=cause, reason=reason)
    failure = replica_failure(deployment)
    if failure is not None:
        return replace(service, problem=failure[1], reason=failure[0])
    return replace(service, problem=_rollout(deployment))


def is_rolled_out(deployment: Manifest) -> bool:
    """Return whether all replicas have the current template and are available.

    This is the end of `kubectl rollout status`.
    """
    status = section(deployment, "status")
    if status.get("observedGeneration", 0) < deployment["metadata"].get("generation", 0):
        return False
    expected = _num_replicas(deployment)
    counts = ("replicas", "updatedReplicas", "availableReplicas")
    return all(status.get(count, 0) == expected for count in counts)


def _num_replicas(deployment: Manifest) -> int:
    return max(1, int(section(deployment, "spec").get("replicas", 1)))


def _rollout(deployment: Manifest) -> str:
    available = section(deployment, "status").get("availableReplicas", 0)
    expected = _num_replicas(deployment)
    return f"starting ({min(available, expected - 1)} of {expected} replicas available)"


def _is_of_current_template(pod: Manifest, deployment: Manifest) -> bool:
    """Return whether a Deployment controls the pod and has its spec hash, if it has one."""
    labels = labels_of(pod)
    replica_set = f"{_name(deployment)}-{labels.get(POD_TEMPLATE_LABEL, '')}"
    spec_hash = labels_of(deployment).get(names.LABEL_SPEC_HASH, "")
    is_current = labels.get(names.LABEL_SPEC_HASH, "") == spec_hash
    is_own = _is_controlled_by(pod, "ReplicaSet", replica_set)
    return is_own and is_current and not is_being_deleted(pod)


def _terminated_state(pod: Manifest, *, include_last: bool = False) -> Manifest | None:
    """Return `state.terminated` of the main container, or None if the container has not exited.

    With `include_last`, falls back to `lastState.terminated`, which remains after a restart.
    """
    for state in ("state", "lastState") if include_last else ("state",):
        if terminated := section(section(main_status(pod), state), "terminated"):
            return terminated
    return None


def _name(pod: Manifest) -> str:
    return str(pod["metadata"]["name"])


def _creation_time(pod: Manifest) -> datetime:
    created: str = pod["metadata"].get("creationTimestamp", "1970-01-01T00:00:00Z")
    return parse_timestamp(created)
