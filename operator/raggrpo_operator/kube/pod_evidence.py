"""What a pod reveals about a loss or a failed start. Pure: a pod in, evidence out."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from typing import Any

from raggrpo_api import names
from raggrpo_api.status import Cause
from raggrpo_operator.core.state.conditions import parse_timestamp

from .cluster_objects import condition_of, is_going

Pod = Mapping[str, Any]


class Weight(IntEnum):
    """How much a piece of evidence explains; the heaviest is reported."""

    DELETED = 1
    ENDED = 2
    DISRUPTED = 3
    OUT_OF_MEMORY = 4


@dataclass(frozen=True, slots=True)
class Loss:
    """A pod, or its main container, that is gone."""

    pod: str
    uid: str
    is_head: bool
    cause: Cause
    message: str
    time: datetime
    weight: Weight
    node: str = ""
    """Where it failed; empty when that says nothing against the node."""


@dataclass(frozen=True, slots=True)
class StartProblem:
    """Why a pod does not start."""

    pod: str
    uid: str
    message: str
    is_final: bool
    """Waiting does not help: somebody has to change something."""


CANNOT_START = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "CrashLoopBackOff",
    }
)
_DISRUPTIONS: Mapping[str, Cause] = {
    "PreemptionByScheduler": Cause.PREEMPTED,
    "EvictionByEvictionAPI": Cause.PREEMPTED,
    "DeletionByTaintManager": Cause.NODE_LOST,
    "DeletionByPodGC": Cause.NODE_LOST,
    "TerminationByKubelet": Cause.NODE_LOST,
}
OUT_OF_MEMORY = "OOMKilled"


def is_head(pod: Pod) -> bool:
    """Tell whether the pod is the head of a Ray cluster, as KubeRay labels it."""
    return bool(pod["metadata"].get("labels", {}).get("ray.io/node-type") == "head")


def loss(pod: Pod, now: datetime, *, was_deleted: bool = False) -> Loss | None:
    """Return why this pod of a Ray cluster is lost, None while it is not.

    `now` dates a deletion, which carries no time of its own.
    """
    if (found := _out_of_memory(pod)) or (found := _disrupted(pod, now)):
        return found
    if found := _ended(pod, now):
        return found
    if was_deleted or is_going(pod):
        return _loss(pod, _plain_cause(pod), "was deleted", now, Weight.DELETED)
    return None


def start_problem(pod: Pod) -> StartProblem | None:
    """Return why this pod does not start, in the pod's own words; None when nothing is wrong."""
    for status in _statuses(pod, "initContainerStatuses", "containerStatuses"):
        waiting = status.get("state", {}).get("waiting", {})
        if waiting.get("reason") in CANNOT_START:
            reason = f"{waiting['reason']}: {waiting.get('message', '')}{_last_end(status)}"
            return StartProblem(*_who(pod), _message(pod, reason), is_final=True)
    scheduled = condition_of(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        reason = f"{scheduled.get('reason', 'Pending')}: {scheduled.get('message', '')}"
        return StartProblem(*_who(pod), _message(pod, reason), is_final=False)
    return None


def _out_of_memory(pod: Pod) -> Loss | None:
    for ended in _ends(pod):
        if ended.get("reason") == OUT_OF_MEMORY:
            limit = _memory_limit(pod)
            reason = f"ran out of memory (OOMKilled, limit {limit})"
            time = parse_timestamp(ended["finishedAt"])
            return _loss(pod, Cause.HOST_OUT_OF_MEMORY, reason, time, Weight.OUT_OF_MEMORY)
    return None


def _disrupted(pod: Pod, now: datetime) -> Loss | None:
    status = pod.get("status", {})
    reason = f"{status.get('reason', '')}: {status.get('message', '')}"
    if status.get("reason") == "Evicted":
        starved = "memory" in status.get("message", "")
        cause = Cause.HOST_OUT_OF_MEMORY if starved else Cause.NODE_LOST
        return _loss(pod, cause, reason, now, Weight.DISRUPTED)
    disruption = condition_of(pod, "DisruptionTarget")
    cause_of = _DISRUPTIONS.get(disruption.get("reason", ""))
    if disruption.get("status") != "True" or cause_of is None:
        return None
    reason = f"{disruption['reason']}: {disruption.get('message', '')}"
    time = parse_timestamp(disruption["lastTransitionTime"])
    return _loss(pod, cause_of, reason, time, Weight.DISRUPTED)


def _ended(pod: Pod, now: datetime) -> Loss | None:
    """Return the end of the main container, which a restart in place does not undo."""
    if is_going(pod):  # its containers end because it is deleted
        return None
    ends = list(_ends(pod))
    if ends:
        reason = f"ended with exit code {ends[0].get('exitCode')} ({ends[0].get('reason', '')})"
        time = parse_timestamp(ends[0]["finishedAt"]) if ends[0].get("finishedAt") else now
        return _loss(pod, _plain_cause(pod), reason, time, Weight.ENDED)
    status = pod.get("status", {})
    if status.get("phase") == "Failed":
        reason = f"failed: {status.get('reason', '')} {status.get('message', '')}"
        return _loss(pod, _plain_cause(pod), reason, now, Weight.ENDED)
    return None


def _plain_cause(pod: Pod) -> Cause:
    return Cause.HEAD_LOST if is_head(pod) else Cause.WORKER_LOST


def _ends(pod: Pod) -> Iterator[Mapping[str, Any]]:
    """Yield how the main container (Ray's, the first) ended, the newest end first."""
    for status in _statuses(pod, "containerStatuses")[:1]:
        for state in ("state", "lastState"):
            if ended := status.get(state, {}).get("terminated"):
                yield ended


def _statuses(pod: Pod, *lists: str) -> list[Mapping[str, Any]]:
    return [each for name in lists for each in pod.get("status", {}).get(name, [])]


def _last_end(status: Mapping[str, Any]) -> str:
    ended = status.get("lastState", {}).get("terminated")
    return f"; it last ended with exit code {ended.get('exitCode')}" if ended else ""


def _memory_limit(pod: Pod) -> str:
    limits = pod["spec"]["containers"][0].get("resources", {}).get("limits", {})
    return str(limits.get("memory", "none"))


def _loss(pod: Pod, cause: Cause, reason: str, time: datetime, weight: Weight) -> Loss:
    name, uid = _who(pod)
    is_nodes_fault = cause is Cause.NODE_LOST or weight is Weight.ENDED
    node = pod.get("spec", {}).get("nodeName", "") if is_nodes_fault else ""
    return Loss(name, uid, is_head(pod), cause, _message(pod, reason), time, weight, node)


def _who(pod: Pod) -> tuple[str, str]:
    return pod["metadata"]["name"], pod["metadata"]["uid"]


def _message(pod: Pod, reason: str) -> str:
    metadata = pod["metadata"]
    role = metadata.get("labels", {}).get(names.LABEL_ROLE, "pod")
    node = pod.get("spec", {}).get("nodeName")
    where = f" on node {node}" if node else ""
    return f"{role} pod {metadata['name']}{where}: {reason.strip(' :')}"
