"""What a person is told when a condition changes: one sentence, or nothing. Decides nothing."""

from raggrpo_api.status.attempts import Tier
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import Condition, ConditionType
from raggrpo_api.status.job_status import JobStatus
from raggrpo_operator.core.lifecycle.round import PODS_WAITING
from raggrpo_operator.core.state.conditions import QUEUED

CAUSES = frozenset(map(str, Cause))
BEGUN_ON = {
    Tier.FIRST: "a new cluster",
    Tier.WARM_CLUSTER: "the warm cluster",
    Tier.NEW_CLUSTER: "a new cluster",
}


def sentence(status: JobStatus, now: Condition, before: Condition) -> str:
    """Return what a change of a condition means; empty: nothing that a person must know."""
    head, message = _head(status, now, before), now.message
    if not head.endswith(":"):
        return head
    return f"{head} {message}" if message else head.removesuffix(":")


def _head(status: JobStatus, now: Condition, before: Condition) -> str:
    """Return the sentence, or its beginning with a colon that the condition's message follows."""
    match now.type, now.status:
        case ConditionType.ACCEPTED, "True":
            return "The specification is valid now" if before.status == "False" else ""
        case ConditionType.ACCEPTED, "False":
            return "The job is refused:"
        case ConditionType.PREFLIGHT_PASSED, "True":
            return _passed(status, now)
        case ConditionType.PREFLIGHT_PASSED, "False":
            return "Preflight failed:"
        case ConditionType.PREFLIGHT_PASSED, _:
            return "Preflight waits for its pod:" if now.reason == PODS_WAITING else ""
        case ConditionType.RETRIEVER_READY, "False":
            return "Waiting for managed retrievers:"
        case ConditionType.CLUSTER_READY, "False":
            return "The Ray cluster waits for its pods:" if now.reason == PODS_WAITING else ""
        case ConditionType.PROGRESSING, "False":
            return _stopped(status, now)
        case ConditionType.CHECKPOINT_HEALTHY, "True":
            return "Backups work again:" if before.status == "False" else "First checkpoint saved:"
        case ConditionType.CHECKPOINT_HEALTHY, "False":
            return "The checkpoint was saved but not backed up:"
        case ConditionType.RESUME_VERIFIED, "True":
            return _began(status, now)
        case ConditionType.RESUME_VERIFIED, "False":
            return "The attempt did not resume where it should:"
        case ConditionType.SUSPENDED, "True":
            return "Waiting in a queue:" if now.reason == QUEUED else "The job is suspended:"
        case ConditionType.SUSPENDED, "False":
            was_stopped = before.status == "True" and before.reason != QUEUED
            return "The job goes on" if was_stopped else ""
        case ConditionType.COMPLETE, "True":
            return "Complete:"
        case ConditionType.FAILED, "True":
            return f"Failed ({now.reason}):"
        case ((ConditionType.COMPLETE | ConditionType.FAILED), "False"):
            return "The job is opened again" if before.status == "True" else ""
        case kind, "True" if kind in TROUBLES:
            return TROUBLES[kind][0]
        case kind, "False" if kind in TROUBLES and before.status == "True":
            return TROUBLES[kind][1]
    return ""


TROUBLES = {
    ConditionType.STALLED: ("Nothing moves any more:", "The job moves again"),
    ConditionType.SLOWING_DOWN: ("Steps take longer:", "Steps are as fast as before"),
    ConditionType.HOST_MEMORY_GROWING: ("Memory keeps growing:", "Memory no longer grows"),
    ConditionType.POLICY_MISMATCH: (
        "Trainer and engine do not agree:",
        "Trainer and engine agree again",
    ),
    ConditionType.WAITING_FOR_ENDPOINT: (
        "Waiting for a service that is down:",
        "No longer waiting for a service",
    ),
    ConditionType.RECONCILING: ("The operator cannot go on:", "The operator goes on"),
}
"""How a trouble begins, and how it ends."""


def _passed(status: JobStatus, now: Condition) -> str:
    count = len(status.preflight.checks)
    told = f"The specification is valid; preflight passed: {count} check{'' if count == 1 else 's'}"
    return f"{told}; {now.message}" if now.message else told


def _began(status: JobStatus, now: Condition) -> str:
    record = status.attempts[0]
    told = f"Attempt {record.number} began on {BEGUN_ON[record.tier]} from step {record.from_step}"
    return f"{told}, an older checkpoint:" if now.reason == "OlderCheckpoint" else told


def _stopped(status: JobStatus, now: Condition) -> str:
    match now.reason:
        case "Restarting":
            return f"Attempt {status.attempt} ended, another follows:"
        case "UpgradeRequired":
            return "The image is too old for this job:"
        case "TargetRaised":
            return "The target was raised while the attempt ran, another follows:"
        case reason if reason in CAUSES and now.message:
            return f"Attempt {status.attempt} is being stopped ({reason}):"
    return ""
