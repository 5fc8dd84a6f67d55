"""The watchdog: a clock per stage and the step-time rule. Time nobody looked kills nothing."""

from datetime import datetime

from raggrpo_api.progress import Progress, Stage
from raggrpo_api.recovery import Deadlines
from raggrpo_api.status import RestartState

from .clocks import elapsed
from .conditions import timestamp

MIN_STEP_LIMIT_SECONDS = 60.0
"""Below this a slow disk or a garbage collection would look like a hang."""

ENOUGH_READS = 2
"""One read tells where the driver is, another that it is still there."""


def watch(state: RestartState, progress: Progress, now: datetime) -> RestartState:
    """Return the clock after one successful read of /progress.

    A step that was finished between two reads restarts it too: two saves in a row may each be
    seen while they last, and nothing else.
    """
    is_still = (state.stage, state.step_seen) == (str(progress.stage), progress.step)
    is_still = is_still and bool(state.still_since)
    return state.model_copy(
        update={
            "stage": str(progress.stage),
            "step_seen": progress.step,
            "still_since": state.still_since if is_still else timestamp(now),
            "reads_since_step": min(ENOUGH_READS, state.reads_since_step + 1) if is_still else 1,
        }
    )


def overdue(
    state: RestartState, progress: Progress, deadlines: Deadlines, now: datetime
) -> str | None:
    """Return what is overdue in words, None when all is in time.

    `state` is the result of `watch` on the same reading.
    """
    limit = stage_limit(progress, deadlines)
    lasted = elapsed(state.still_since, state, now)
    if state.reads_since_step < ENOUGH_READS or lasted <= limit:
        return None
    return f"stage {progress.stage} at step {progress.step} for {lasted:.0f} s, limit {limit:.0f} s"


def stage_limit(progress: Progress, deadlines: Deadlines) -> float:
    """Return how long the present stage may last without a step (seconds)."""
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
        case Stage.CHECKPOINTING | Stage.EXPORTING | Stage.FINISHED:
            return deadlines.checkpoint_seconds
        case Stage.VALIDATING:
            return deadlines.validation_seconds
