"""Notes of Events about transitions of conditions. Decides nothing."""

from raggrpo_api.status.attempts import Tier
from raggrpo_api.status.conditions import Condition, ConditionType
from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.status.reasons import POD_START_REASONS, ConditionReason

CLUSTER_OF_TIER = {
    Tier.FIRST: "a new cluster",
    Tier.WARM_CLUSTER: "the warm cluster",
    Tier.NEW_CLUSTER: "a new cluster",
}
WARNING_CONDITIONS = {
    ConditionType.STALLED: ("Nothing moves any more", "The job moves again"),
    ConditionType.SLOWING_DOWN: ("Steps take longer", "Steps are as fast as before"),
    ConditionType.HOST_MEMORY_GROWING: ("Memory keeps growing", "Memory no longer grows"),
    ConditionType.POLICY_MISMATCH: (
        "Trainer and engine do not agree",
        "Trainer and engine agree again",
    ),
    ConditionType.WAITING_FOR_ENDPOINT: (
        "Waiting for a service that is down",
        "No longer waiting for a service",
    ),
    ConditionType.RECONCILING: ("The operator cannot go on", "The operator goes on"),
}
"""Notes when a condition becomes True, and when it becomes False again."""


def event_note(status: JobStatus, now: Condition, before: Condition) -> str:
    """Return the note of the Event about a condition that changed, or "" if there is none."""
    headline, message = _headline(status, now, before), now.message
    match now.type, now.status:
        case ConditionType.ACCEPTED, "True":
            return "The specification is valid now" if before.status == "False" else ""
        case ConditionType.PREFLIGHT_PASSED, "True":
            return _preflight_passed(status, now)
        case ConditionType.RESUME_VERIFIED, "True":
            return _attempt_started(status, now)
        case ConditionType.SUSPENDED, "False":
            was_user = before.status == "True" and before.reason != ConditionReason.QUEUED
            return "The job goes on" if was_user else ""
        case ((ConditionType.COMPLETE | ConditionType.FAILED), "False"):
            return "The job is opened again" if before.status == "True" else ""
        case kind, "False" if kind in WARNING_CONDITIONS:
            return WARNING_CONDITIONS[kind][1] if before.status == "True" else ""
    return f"{headline}: {message}" if headline and message else headline


def _headline(status: JobStatus, now: Condition, before: Condition) -> str:
    """Return what the condition's message explains, or "" if the change needs no Event."""
    is_start_problem = now.reason in POD_START_REASONS
    match now.type, now.status:
        case ConditionType.ACCEPTED, "False":
            return "The job is refused"
        case ConditionType.PREFLIGHT_PASSED, "False":
            return "Preflight failed"
        case ConditionType.PREFLIGHT_PASSED, "Unknown":
            return "Preflight waits for its pod" if is_start_problem else ""
        case ConditionType.RETRIEVER_READY, "False":
            return "Waiting for managed retrievers"
        case ConditionType.CLUSTER_READY, "False":
            return "The Ray cluster waits for its pods" if is_start_problem else ""
        case ConditionType.PROGRESSING, "False":
            return _stop_headline(status, now)
        case ConditionType.CHECKPOINT_HEALTHY, "True":
            was_failing = before.status == "False"
            return "Backups work again" if was_failing else "First checkpoint saved"
        case ConditionType.CHECKPOINT_HEALTHY, "False":
            return "The checkpoint was saved but not backed up"
        case ConditionType.RESUME_VERIFIED, "False":
            return "The attempt did not resume where it should"
        case ConditionType.SUSPENDED, "True":
            is_queued = now.reason == ConditionReason.QUEUED
            return "Waiting in a queue" if is_queued else "The job is suspended"
        case ConditionType.COMPLETE, "True":
            return "Complete"
        case ConditionType.FAILED, "True":
            return f"Failed ({now.reason})"
        case kind, "True" if kind in WARNING_CONDITIONS:
            return WARNING_CONDITIONS[kind][0]
    return ""


def _stop_headline(status: JobStatus, now: Condition) -> str:
    match now.reason:
        case ConditionReason.RESTARTING:
            return f"Attempt {status.attempt} ended, another follows"
        case ConditionReason.UPGRADE_REQUIRED:
            return "The image is too old for this job"
        case ConditionReason.TARGET_RAISED:
            return "The target was raised while the attempt ran, another follows"
        case reason if reason == status.restart_state.retry.intent:
            return f"Attempt {status.attempt} is being stopped ({reason})"
    return ""


def _preflight_passed(status: JobStatus, now: Condition) -> str:
    count = len(status.preflight.checks)
    note = f"The specification is valid; preflight passed: {count} check{'' if count == 1 else 's'}"
    return f"{note}; {now.message}" if now.message else note


def _attempt_started(status: JobStatus, now: Condition) -> str:
    record = status.attempts[0]
    cluster = CLUSTER_OF_TIER[record.tier]
    note = f"Attempt {record.number} began on {cluster} from step {record.from_step}"
    is_older = now.reason == ConditionReason.OLDER_CHECKPOINT
    return f"{note}, an older checkpoint: {now.message}" if is_older else note
