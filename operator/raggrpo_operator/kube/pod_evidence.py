"""Evidence in a pod's status that the pod was lost or cannot start. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from typing import Any

from raggrpo_api import names
from raggrpo_api.fields.text import one_line
from raggrpo_api.memory.shortage import Shortage
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.reasons import ConditionReason
from raggrpo_api.status.sizing import PodRole
from raggrpo_operator.core.state.conditions import parse_timestamp

from .cluster_objects import RAY_NODE_TYPE_LABEL, condition_of, is_being_deleted, labels_of, section

Pod = Mapping[str, Any]


class Weight(IntEnum):
    """Priority of evidence; the evidence with the highest weight is reported."""

    DELETED = 1
    ENDED = 2
    DISRUPTED = 3
    OUT_OF_MEMORY = 4


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of a pod or of its main container."""

    pod: str
    uid: str
    is_head: bool
    cause: Cause
    message: str
    time: datetime
    weight: Weight
    short_of: Shortage | None = None
    """The memory that ran out, if known; None for other causes."""
    node: str = ""
    """The node to which the loss is attributed; "" if the node is not the cause."""


@dataclass(frozen=True, slots=True)
class StartProblem:
    """The reason why a pod does not start."""

    pod: str
    uid: str
    reason: ConditionReason
    message: str
    is_final: bool
    """Whether the pod cannot start until a person has fixed the cause."""


WAITING_REASONS: Mapping[str, ConditionReason] = {
    "ErrImagePull": ConditionReason.IMAGE_PULL_FAILED,
    "ImagePullBackOff": ConditionReason.IMAGE_PULL_FAILED,
    "InvalidImageName": ConditionReason.IMAGE_PULL_FAILED,
    "ErrImageNeverPull": ConditionReason.IMAGE_PULL_FAILED,
    "CreateContainerConfigError": ConditionReason.CONTAINER_START_FAILED,
    "CreateContainerError": ConditionReason.CONTAINER_START_FAILED,
    "RunContainerError": ConditionReason.CONTAINER_START_FAILED,
    "CrashLoopBackOff": ConditionReason.CRASH_LOOP_BACK_OFF,
}
"""Reason of a waiting container that prevents its pod from starting → condition reason."""
SCHEDULING_REASONS: Mapping[str, ConditionReason] = {
    "Unschedulable": ConditionReason.UNSCHEDULABLE,
    "SchedulingGated": ConditionReason.SCHEDULING_GATED,
}
_DISRUPTIONS: Mapping[str, Cause] = {
    "PreemptionByScheduler": Cause.PREEMPTED,
    "EvictionByEvictionAPI": Cause.PREEMPTED,
    "DeletionByTaintManager": Cause.NODE_LOST,
    "DeletionByPodGC": Cause.NODE_LOST,
    "TerminationByKubelet": Cause.NODE_LOST,
}
_SHORTAGE: Mapping[str, Shortage] = {
    PodRole.HEAD: Shortage.HEAD_HOST,
    PodRole.TRAINER: Shortage.TRAINER_HOST,
    PodRole.ROLLOUT: Shortage.ROLLOUT_HOST,
}
OUT_OF_MEMORY = "OOMKilled"
MAX_DETAIL = 512
"""Maximum characters quoted from a pod status."""
MAX_LOG_TAIL = 300
"""Maximum characters quoted from a termination message, which is the end of the log."""


def is_head(pod: Pod) -> bool:
    """Return whether KubeRay has labeled the pod as the head of a Ray cluster."""
    return labels_of(pod).get(RAY_NODE_TYPE_LABEL) == "head"


def loss(pod: Pod, now: datetime, *, was_deleted: bool = False) -> Loss | None:
    """Return the loss of a pod of a Ray cluster, or None if the pod was not lost.

    `now` is used as the time of evidence without a timestamp, such as a deletion.
    """
    evidence = _out_of_memory(pod, now) or _disrupted(pod, now) or _terminated(pod, now)
    if evidence is not None:
        return evidence
    if was_deleted or is_being_deleted(pod):
        return _loss(pod, _default_cause(pod), "was deleted", now, Weight.DELETED)
    return None


def start_problem(pod: Pod) -> StartProblem | None:
    """Return the problem that keeps the pod from starting, with its status quoted, or None."""
    for status in _statuses(pod, "initContainerStatuses", "containerStatuses"):
        waiting = section(section(status, "state"), "waiting")
        if (reason := WAITING_REASONS.get(waiting.get("reason", ""))) is not None:
            detail = f"{waiting['reason']}: {waiting.get('message', '')}{_last_exit(status)}"
            return StartProblem(*_name_and_uid(pod), reason, _message(pod, detail), is_final=True)
    scheduled = condition_of(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        detail = f"{scheduled.get('reason', 'Pending')}: {scheduled.get('message', '')}"
        default = ConditionReason.PODS_NOT_READY
        reason = SCHEDULING_REASONS.get(scheduled.get("reason", ""), default)
        return StartProblem(*_name_and_uid(pod), reason, _message(pod, detail), is_final=False)
    return None


def _out_of_memory(pod: Pod, now: datetime) -> Loss | None:
    for terminated in _terminations(pod):
        if terminated.get("reason") == OUT_OF_MEMORY:
            detail = out_of_memory_text(pod)
            time = _time(terminated.get("finishedAt"), now)
            return _loss(pod, Cause.HOST_OUT_OF_MEMORY, detail, time, Weight.OUT_OF_MEMORY)
    return None


def out_of_memory_text(pod: Pod) -> str:
    """Return the predicate of a pod that was killed at its memory limit."""
    return f"ran out of memory ({OUT_OF_MEMORY}, limit {_memory_limit(pod)})"


def _disrupted(pod: Pod, now: datetime) -> Loss | None:
    status = section(pod, "status")
    detail = f"{status.get('reason', '')}: {status.get('message', '')}"
    if status.get("reason") == "Evicted":
        is_memory = "memory" in (status.get("message") or "")
        cause = Cause.HOST_OUT_OF_MEMORY if is_memory else Cause.NODE_LOST
        return _loss(pod, cause, detail, now, Weight.DISRUPTED)
    disruption = condition_of(pod, "DisruptionTarget")
    disruption_cause = _DISRUPTIONS.get(disruption.get("reason", ""))
    if disruption.get("status") != "True" or disruption_cause is None:
        return None
    detail = f"{disruption['reason']}: {disruption.get('message', '')}"
    time = _time(disruption.get("lastTransitionTime"), now)
    return _loss(pod, disruption_cause, detail, time, Weight.DISRUPTED)


def _terminated(pod: Pod, now: datetime) -> Loss | None:
    """Return the loss of the main container, even if the kubelet has restarted it."""
    if is_being_deleted(pod):  # the deletion terminates the containers
        return None
    latest = next(_terminations(pod), None)
    if latest is not None:
        code, reason, log = (latest.get(key, "") for key in ("exitCode", "reason", "message"))
        detail = f"exited with code {code} ({reason}): {log[-MAX_LOG_TAIL:]}"
        time = _time(latest.get("finishedAt"), now)
        return _loss(pod, _default_cause(pod), detail, time, Weight.ENDED)
    status = section(pod, "status")
    if status.get("phase") == "Failed":
        detail = f"failed: {status.get('reason', '')} {status.get('message', '')}"
        return _loss(pod, _default_cause(pod), detail, now, Weight.ENDED)
    return None


def _default_cause(pod: Pod) -> Cause:
    return Cause.HEAD_LOST if is_head(pod) else Cause.WORKER_LOST


def _terminations(pod: Pod) -> Iterator[Mapping[str, Any]]:
    """Yield the terminated states of the main container, most recent first."""
    for state in ("state", "lastState"):
        if terminated := section(section(main_status(pod), state), "terminated"):
            yield terminated


def main_status(pod: Pod) -> Mapping[str, Any]:
    """Return the status of the main container; injected containers may precede it."""
    return _main(_statuses(pod, "containerStatuses"))


def _main(containers: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    main = (each for each in containers if each.get("name") in names.MAIN_CONTAINERS)
    return next(main, containers[0] if containers else {})


def _statuses(pod: Pod, *lists: str) -> list[Mapping[str, Any]]:
    return [each for name in lists for each in section(pod, "status").get(name) or []]


def _last_exit(status: Mapping[str, Any]) -> str:
    terminated = section(section(status, "lastState"), "terminated")
    return f"; last exit code {terminated.get('exitCode')}" if terminated else ""


def _memory_limit(pod: Pod) -> str:
    resources = _main(pod["spec"].get("containers", [])).get("resources", {})
    return str(resources.get("limits", {}).get("memory", "none"))


def _loss(pod: Pod, cause: Cause, detail: str, time: datetime, weight: Weight) -> Loss:
    name, uid = _name_and_uid(pod)
    is_node_failure = cause is Cause.NODE_LOST or weight is Weight.ENDED
    node = pod.get("spec", {}).get("nodeName", "") if is_node_failure else ""
    role = labels_of(pod).get(names.LABEL_ROLE, "")
    short_of = _SHORTAGE.get(role) if cause is Cause.HOST_OUT_OF_MEMORY else None
    message = _message(pod, detail)
    return Loss(name, uid, is_head(pod), cause, message, time, weight, short_of, node)


def _time(text: str | None, default: datetime) -> datetime:
    """Return a timestamp of a pod status, or `default` if it is missing or invalid."""
    try:
        time = parse_timestamp(text or "")
    except ValueError:
        return default
    return time if time.tzinfo is not None else default


def _name_and_uid(pod: Pod) -> tuple[str, str]:
    return pod["metadata"]["name"], pod["metadata"]["uid"]


def _message(pod: Pod, text: str) -> str:
    metadata = pod["metadata"]
    role = labels_of(pod).get(names.LABEL_ROLE, "")
    node = pod.get("spec", {}).get("nodeName")
    subject = f"{role} pod {metadata['name']}{f' on node {node}' if node else ''}".lstrip()
    return f"{subject}: {one_line(text, MAX_DETAIL).strip(' :')}"
