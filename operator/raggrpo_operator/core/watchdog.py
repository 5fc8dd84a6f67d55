"""The watchdog: a clock per stage and the step-time rule. Time nobody looked kills nothing."""

from datetime import datetime

from raggrpo_api.progress import Progress, Stage
from raggrpo_api.recovery import Deadlines
from raggrpo_api.status import RestartState

from .conditions import parse_timestamp, timestamp

MIN_STEP_LIMIT_SECONDS = 60.0
"""Below this a slow disk or a garbage collection would look like a hang."""


def watch(state: RestartState, progress: Progress, now: datetime) -> RestartState:
    """Return the clocks after one successful read of /progress."""
    same_stage = state.stage == progress.stage and bool(state.stage_entered)
    same_step = state.step_seen == progress.step and same_stage
    return state.model_copy(
        update={
            "stage": str(progress.stage),
            "stage_entered": state.stage_entered if same_stage else timestamp(now),
            "step_seen": progress.step,
            "step_seen_time": state.step_seen_time if same_step else timestamp(now),
            "reads_since_step": state.reads_since_step + 1 if same_step else 1,
        }
    )


def overdue(
    state: RestartState, progress: Progress, deadlines: Deadlines, now: datetime
) -> str | None:
    """Return what is overdue in words, None when all is in time.

    `state` is the result of `watch` on the same reading.
    """
    since = state.step_seen_time if progress.stage is Stage.TRAINING else state.stage_entered
    limit = stage_limit(progress, deadlines)
    if limit is None or not since or state.reads_since_step < 2:
        return None
    lasted = (now - parse_timestamp(since)).total_seconds()
    if lasted <= limit:
        return None
    return f"stage {progress.stage} at step {progress.step} for {lasted:.0f} s, limit {limit:.0f} s"


def stage_limit(progress: Progress, deadlines: Deadlines) -> float | None:
    """Return how long the present stage may last (seconds), None for no limit."""
    match progress.stage:
        case Stage.CONNECTING | Stage.LOADING_MODEL:
            return deadlines.loading_model_seconds
        case Stage.STARTING_ROLLOUT:
            return deadlines.starting_rollout_seconds
        case Stage.WARMING_RETRIEVAL:
            return deadlines.warming_retrieval_seconds
        case Stage.FIRST_STEP:
            return deadlines.first_step_seconds
        case Stage.TRAINING:
            usual = progress.seconds_per_step
            return max(MIN_STEP_LIMIT_SECONDS, deadlines.step_timeout_factor * usual)
        case Stage.CHECKPOINTING | Stage.EXPORTING:
            return deadlines.checkpoint_seconds
        case Stage.VALIDATING:
            return deadlines.validation_seconds
        case Stage.FINISHED:
            return None
