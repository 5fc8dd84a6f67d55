"""The condition NotLearning, from the streaks that an attempt reports. Pure."""

from collections.abc import Iterator

from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.spec.recovery import OnNotLearning
from raggrpo_api.status.conditions import ConditionType
from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.status.reasons import ConditionReason
from raggrpo_api.trainer.learning import (
    NotLearningReason,
    not_learning,
    not_learning_message,
    window_steps,
)
from raggrpo_api.trainer.progress import Progress
from raggrpo_operator.core.state.conditions import ConditionChange, get_condition


def learning_change(
    status: JobStatus, progress: Progress, spec: JobSpec
) -> Iterator[ConditionChange]:
    """Yield the transition of NotLearning, if any.

    A condition with an unchanged reason keeps its message, whose example would otherwise change
    with every step. It becomes False only at a step without the sign that is its reason.
    """
    if not _has_own_steps(progress):
        return
    window = _window(spec, progress)
    streak = not_learning(progress.streaks, progress.step, window)
    condition = get_condition(status, ConditionType.NOT_LEARNING)
    is_current = condition.status == "True"
    if streak is not None and not (is_current and condition.reason == streak.reason):
        reason = NotLearningReason(streak.reason)
        yield ConditionChange(
            ConditionType.NOT_LEARNING, True, reason, not_learning_message(streak)
        )
    elif is_current and condition.reason not in {each.reason for each in progress.streaks}:
        yield ConditionChange(ConditionType.NOT_LEARNING, False, ConditionReason.LEARNING)


def stop_reason(status: JobStatus, progress: Progress, spec: JobSpec) -> str:
    """Return why to stop an attempt that does not learn, or "" to continue.

    An attempt is not stopped before it has completed the window itself: the user may have retried
    the job because what it lacked is fixed.
    """
    first_step = progress.started_from_step
    if first_step is None or progress.step - first_step < _window(spec, progress):
        return ""
    return failure(status, spec)


def failure(status: JobStatus, spec: JobSpec) -> str:
    """Return the message with which a job that does not learn fails, or "" if it does not fail."""
    condition = get_condition(status, ConditionType.NOT_LEARNING)
    is_fatal = spec.recovery.on_not_learning is OnNotLearning.FAIL and condition.status == "True"
    return f"{condition.reason}: {condition.message}" if is_fatal else ""


def _has_own_steps(progress: Progress) -> bool:
    first_step = progress.started_from_step
    return first_step is not None and progress.step > first_step


def _window(spec: JobSpec, progress: Progress) -> int:
    total_steps = progress.total_steps or spec.training.total_steps
    return window_steps(spec.monitoring.history_window, total_steps)
