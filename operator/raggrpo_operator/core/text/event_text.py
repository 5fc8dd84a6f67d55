"""Notes of the Events about condition transitions. Pure."""

from raggrpo_api.status.attempts import Tier
from raggrpo_api.status.cause import WRITE_FAILURES
from raggrpo_api.status.conditions import Condition, ConditionType
from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.status.reasons import POD_START_REASONS, ConditionReason
from raggrpo_operator.core.state.lost_steps import lost_remark

from .segments import changes_text

CLUSTER_OF_TIER = {
    Tier.FIRST: "a new cluster",
    Tier.WARM_CLUSTER: "the warm cluster",
    Tier.NEW_CLUSTER: "a new cluster",
}
WARNING_CONDITIONS = {
    ConditionType.STALLED: ("The attempt is stalled", "The attempt makes progress again"),
    ConditionType.SLOWING_DOWN: ("Steps have slowed down", "Step time has recovered"),
    ConditionType.HOST_MEMORY_GROWING: ("Host memory is growing", "Host memory is stable again"),
    ConditionType.POLICY_MISMATCH: (
        "Logprobs of trainer and engine differ",
        "Logprobs of trainer and engine agree again",
    ),
    ConditionType.NOT_LEARNING: ("The run is not learning", "The run is learning again"),
    ConditionType.WAITING_FOR_ENDPOINT: (
        "Waiting for an unavailable service",
        "The service is available again",
    ),
    ConditionType.RECONCILING: ("Reconciliation failed", "Reconciliation succeeded"),
}
"""Headline when the condition becomes True, and note when it becomes False again."""


def event_note(status: JobStatus, now: Condition, before: Condition) -> str:
    """Return the note of the Event about a changed condition, or "" if no Event is needed."""
    headline, message = _headline(status, now, before), now.message
    match now.type, now.status:
        case ConditionType.ACCEPTED, "True":
            return "The spec is valid again" if before.status == "False" else ""
        case ConditionType.PREFLIGHT_PASSED, "True":
            return _preflight_passed(status, now)
        case ConditionType.RESUME_VERIFIED, "True":
            return _attempt_started(status, now)
        case ConditionType.SUSPENDED, "False":
            was_user = before.status == "True" and before.reason != ConditionReason.QUEUED
            return "The job is resumed" if was_user else ""
        case ((ConditionType.COMPLETE | ConditionType.FAILED), "False"):
            return "The job is reopened" if before.status == "True" else ""
        case _, "False" if now.reason == ConditionReason.ATTEMPT_ENDED:
            return ""  # nothing has improved
        case kind, "False" if kind in WARNING_CONDITIONS:
            return WARNING_CONDITIONS[kind][1] if before.status == "True" else ""
    return f"{headline}: {message}" if headline and message else headline


def _headline(status: JobStatus, now: Condition, before: Condition) -> str:
    """Return the headline that precedes the condition's message, or "" if no Event is needed."""
    is_start_problem = now.reason in POD_START_REASONS
    match now.type, now.status:
        case ConditionType.ACCEPTED, "False":
            return "The spec is invalid"
        case ConditionType.SOURCES_STAGED, "False":
            return "Staging failed"
        case ConditionType.SOURCES_STAGED, "Unknown":
            return "Waiting for the staging pod" if is_start_problem else ""
        case ConditionType.SOURCES_STAGED, "True":
            return "Models and data are staged"
        case ConditionType.PREFLIGHT_PASSED, "False":
            return "Preflight failed"
        case ConditionType.PREFLIGHT_PASSED, "Unknown":
            return "Waiting for the preflight pod" if is_start_problem else ""
        case ConditionType.RETRIEVER_READY, "False":
            return "Waiting for managed retrievers"
        case ConditionType.AGENT_SERVICE_READY, "False":
            return "Waiting for the container of the agent"
        case ConditionType.CLUSTER_READY, "False":
            return "Waiting for the Ray cluster's pods" if is_start_problem else ""
        case ConditionType.PROGRESSING, "False":
            return _stop_headline(status, now)
        case ConditionType.CHECKPOINT_HEALTHY, "True":
            return _saved_headline(before)
        case ConditionType.CHECKPOINT_HEALTHY, "False":
            has_failed = now.reason in WRITE_FAILURES
            return (
                "The checkpoint could not be saved"
                if has_failed
                else "The checkpoint was saved, but its backup failed"
            )
        case ConditionType.RESUME_VERIFIED, "False":
            return "The attempt did not resume from the newest checkpoint"
        case ConditionType.SUSPENDED, "True":
            is_queued = now.reason == ConditionReason.QUEUED
            return "Waiting in a queue" if is_queued else "The job is suspended"
        case ConditionType.COMPLETE, "True":
            return "Complete"
        case ConditionType.RESULT_PUSHED, "True":
            return "The results are pushed"
        case ConditionType.RESULT_PUSHED, "False":
            return "Pushing the results failed"
        case ConditionType.RESULT_PUSHED, "Unknown" if now.message:
            return "Pushing the results is delayed"
        case ConditionType.FAILED, "True":
            return f"Failed ({now.reason})"
        case kind, "True" if kind in WARNING_CONDITIONS:
            return WARNING_CONDITIONS[kind][0]
    return ""


def _saved_headline(before: Condition) -> str:
    if before.status != "False":
        return "First checkpoint saved"
    was_written = before.reason not in WRITE_FAILURES
    return "Backups succeed again" if was_written else "Checkpoints are saved again"


def _stop_headline(status: JobStatus, now: Condition) -> str:
    match now.reason:
        case ConditionReason.RESTARTING:
            return f"Attempt {status.attempt} ended and will be restarted"
        case ConditionReason.UPGRADE_REQUIRED:
            return "The image does not support this job"
        case ConditionReason.TARGET_RAISED:
            return "The target was raised during the attempt; another attempt follows"
        case reason if reason == status.restart_state.retry.intent:
            return f"Stopping attempt {status.attempt} ({reason})"
    return ""


def _preflight_passed(status: JobStatus, now: Condition) -> str:
    count = len(status.preflight.checks)
    note = f"The spec is valid; preflight passed: {count} check{'' if count == 1 else 's'}"
    return f"{note}; {now.message}" if now.message else note


def _attempt_started(status: JobStatus, now: Condition) -> str:
    record = status.attempts[0]
    cluster = CLUSTER_OF_TIER[record.tier]
    note = f"Attempt {record.number} started on {cluster} from step {record.from_step}"
    started = [each for each in status.segments if each.first_step == (record.from_step or 0) + 1]
    if started and started[-1].from_checkpoint:
        note += f" of {started[-1].from_checkpoint}"
    if started:
        note += f", with changed values: {changes_text(started[-1])}"
    is_older = now.reason == ConditionReason.OLDER_CHECKPOINT
    return f"{note}, an older checkpoint: {now.message}" if is_older else note + lost_remark(status)
