"""Condition Ready, with the condition that explains it as its reason. Pure."""

from collections.abc import Iterator
from datetime import datetime

from raggrpo_api.status.conditions import Condition, ConditionType
from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.status.reasons import POD_START_REASONS, ConditionReason

from .conditions import get_condition, is_true, not_learning_reason, put_condition

EXPLANATIONS = (
    (ConditionType.FAILED, "True"),
    (ConditionType.COMPLETE, "True"),
    (ConditionType.ACCEPTED, "False"),
    (ConditionType.RECONCILING, "True"),
    (ConditionType.SUSPENDED, "True"),
    (ConditionType.WAITING_FOR_ENDPOINT, "True"),
    (ConditionType.SOURCES_STAGED, "False"),
    (ConditionType.SOURCES_STAGED, "Unknown"),
    (ConditionType.PREFLIGHT_PASSED, "False"),
    (ConditionType.PREFLIGHT_PASSED, "Unknown"),
    (ConditionType.STALLED, "True"),
    (ConditionType.PROGRESSING, "False"),
    (ConditionType.RETRIEVER_READY, "False"),
    (ConditionType.AGENT_SERVICE_READY, "False"),
    (ConditionType.CLUSTER_READY, "False"),
    (ConditionType.CHECKPOINT_HEALTHY, "False"),
    (ConditionType.RESUME_VERIFIED, "False"),
    (ConditionType.NOT_LEARNING, "True"),
    (ConditionType.SLOWING_DOWN, "True"),
    (ConditionType.HOST_MEMORY_GROWING, "True"),
    (ConditionType.POLICY_MISMATCH, "True"),
    (ConditionType.PROGRESSING, "True"),
    (ConditionType.RESULT_PUSHED, "False"),
    (ConditionType.RESULT_PUSHED, "Unknown"),
)
"""Conditions that explain the state of a job, most significant first."""


def with_ready(status: JobStatus, now: datetime) -> JobStatus:
    """Return the status with Ready as defined in kstatus.

    Progressing alone does not imply Ready: a queue may have preempted the pods of an attempt whose
    end has not been observed yet, and pods may be unschedulable.
    """
    is_healthy = is_true(status, ConditionType.PROGRESSING)
    is_healthy &= not is_true(status, ConditionType.SUSPENDED)
    is_healthy &= not is_true(status, ConditionType.WAITING_FOR_ENDPOINT)
    cluster = get_condition(status, ConditionType.CLUSTER_READY)
    is_healthy &= cluster.status != "False" or cluster.reason not in POD_START_REASONS
    is_ready = is_healthy or is_true(status, ConditionType.COMPLETE)
    return put_condition(status, ConditionType.READY, is_ready, _reason(status), "", now)


def explanations(status: JobStatus) -> Iterator[Condition]:
    """Yield the conditions that explain the state of the job, most significant first.

    Of the steps before an attempt that have not ended, only the first explains it.
    """
    by_type = {each.type: each for each in status.conditions}
    is_pending = False
    for kind, value in EXPLANATIONS:
        condition = by_type.get(kind)
        if condition is None or condition.status != value or (value == "Unknown" and is_pending):
            continue
        is_pending |= value == "Unknown"
        yield condition


def _reason(status: JobStatus) -> str:
    """Return the reason of the first condition that explains the state of the job."""
    explanation = next(explanations(status), None)
    if explanation is None:
        return ConditionReason.NOT_READY
    if explanation.reason == ConditionReason.RESTARTING and status.attempts:
        return status.attempts[0].cause or explanation.reason
    if explanation.type is ConditionType.COMPLETE:
        return not_learning_reason(status) or explanation.reason
    return explanation.reason
