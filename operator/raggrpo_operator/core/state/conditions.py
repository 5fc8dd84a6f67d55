"""Set and read conditions; derive `phase` from them. Pure."""

from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

from raggrpo_api.fields.text import lines
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import Condition, ConditionType, Phase
from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.status.reasons import ConditionReason
from raggrpo_api.trainer.learning import NotLearningReason
from raggrpo_api.trainer.preflight import CheckId
from raggrpo_api.trainer.progress import Stage
from raggrpo_api.trainer.staging import StagingReason
from raggrpo_operator.core.spec.violation import Reason as RuleReason

MAX_MESSAGE = 1024
"""Maximum characters of a condition's message."""
Reason = ConditionReason | Cause | CheckId | RuleReason | NotLearningReason | StagingReason
"""Every reason that a condition may have."""


class ConditionChange(NamedTuple):
    """A new status of a condition, with its reason and message."""

    type: ConditionType
    value: bool | None
    """None for Unknown."""
    reason: Reason
    message: str = ""


def parse_timestamp(text: str) -> datetime:
    """Parse an RFC 3339 timestamp with a time zone. Raises ValueError if it is malformed."""
    return datetime.fromisoformat(text)


def get_condition(status: JobStatus, kind: ConditionType) -> Condition:
    """Return the condition, or a condition with status `Unknown` if it was never set."""
    for condition in status.conditions:
        if condition.type is kind:
            return condition
    return Condition(type=kind, status="Unknown", reason=ConditionReason.NOT_EVALUATED)


def is_true(status: JobStatus, kind: ConditionType) -> bool:
    """Return whether the condition is True."""
    return get_condition(status, kind).status == "True"


def not_learning_reason(status: JobStatus) -> str:
    """Return why the latest steps learned nothing, or "" if they may have."""
    condition = get_condition(status, ConditionType.NOT_LEARNING)
    return condition.reason if condition.status == "True" else ""


def has_ended(status: JobStatus) -> bool:
    """Return whether the job is complete or has failed."""
    return is_true(status, ConditionType.COMPLETE) or is_true(status, ConditionType.FAILED)


def has_push_failed(status: JobStatus) -> bool:
    """Return whether the results of the job could not be pushed."""
    return get_condition(status, ConditionType.RESULT_PUSHED).status == "False"


def set_condition(
    status: JobStatus,
    kind: ConditionType,
    value: bool | None,
    reason: Reason,
    message: str,
    now: datetime,
) -> JobStatus:
    """Return the status with this condition; the transition time changes only with `value`."""
    return put_condition(status, kind, value, str(reason), message, now)


def put_condition(
    status: JobStatus,
    kind: ConditionType,
    value: bool | None,
    reason: str,
    message: str,
    now: datetime,
) -> JobStatus:
    """Do the same as `set_condition` with a reason copied from another condition."""
    text = {True: "True", False: "False", None: "Unknown"}[value]
    old = get_condition(status, kind)
    since = old.last_transition_time if old.status == text else now
    new = Condition(
        type=kind,
        status=text,
        reason=reason,
        message=lines(message, MAX_MESSAGE),
        last_transition_time=since or now,
        observed_generation=status.observed_generation,
    )
    if new == old:
        return status
    by_type = {each.type: each for each in status.conditions} | {kind: new}
    return replace(status, conditions=[by_type[each] for each in ConditionType if each in by_type])


STARTING_STAGES = frozenset(
    {Stage.CONNECTING, Stage.LOADING_MODEL, Stage.READING_DATA, Stage.STARTING_ROLLOUT}
    | {Stage.WARMING_RETRIEVAL, Stage.FIRST_STEP}
)


def phase_from(status: JobStatus) -> Phase:
    """Return the phase that summarizes the conditions."""
    true = {c.type for c in status.conditions if c.status == "True"}
    false = {c.type for c in status.conditions if c.status == "False"}
    progressing = get_condition(status, ConditionType.PROGRESSING)
    if ConditionType.COMPLETE in true:
        return Phase.SUCCEEDED
    if ConditionType.ACCEPTED in false:
        return Phase.INVALID
    if ConditionType.FAILED in true:
        return Phase.FAILED
    if ConditionType.SUSPENDED in true:
        reason = get_condition(status, ConditionType.SUSPENDED).reason
        return Phase.QUEUED if reason == ConditionReason.QUEUED else Phase.SUSPENDED
    if ConditionType.ACCEPTED not in true:
        return Phase.PENDING
    staged = get_condition(status, ConditionType.SOURCES_STAGED)
    if staged.status != "True" and staged.reason != ConditionReason.NOT_EVALUATED:
        return Phase.STAGING
    if ConditionType.PREFLIGHT_PASSED not in true:
        return Phase.PREFLIGHT
    if progressing.reason == ConditionReason.RESTARTING:
        return Phase.RESTARTING
    if ConditionType.CLUSTER_READY not in true or status.attempt == 0:
        return Phase.PROVISIONING
    stage = status.progress.stage
    if stage == Stage.WAITING_FOR_ENDPOINT:  # the last stage before the outage
        stage = status.restart_state.watch.stage
    if stage in STARTING_STAGES or not stage:
        return Phase.STARTING
    return Phase.RUNNING
