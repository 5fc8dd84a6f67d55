"""The watchdog: deadlines of stages and steps, for which only observed time counts. Pure."""

from dataclasses import replace
from datetime import datetime

from raggrpo_api.spec.recovery import Deadlines
from raggrpo_api.status.restart_state import WatchState
from raggrpo_api.trainer.progress import Progress
from raggrpo_operator.core.state.observed_time import elapsed

from . import outages
from .stage_deadlines import advice, stage_limit

MIN_READS = 2
"""Minimum reads of /progress with the same stage and step before the attempt is stalled."""


def advance_timer(state: WatchState, progress: Progress, now: datetime) -> WatchState:
    """Return `state` with the stage timer advanced after a successful read of /progress.

    A new stage or step resets the timer. A service outage pauses it.
    """
    state = outages.advance_timer(state, progress, now)
    if state.outage_since is not None:
        return replace(state, unread_since=None)
    is_unchanged = (state.stage, state.step_seen) == (str(progress.stage), progress.step)
    is_unchanged = is_unchanged and state.still_since is not None
    return replace(
        state,
        unread_since=None,
        stage=str(progress.stage),
        step_seen=progress.step,
        still_since=state.still_since if is_unchanged else now,
        reads_since_step=min(MIN_READS, state.reads_since_step + 1) if is_unchanged else 1,
    )


def timeout_message(
    state: WatchState, progress: Progress, deadlines: Deadlines, now: datetime
) -> str | None:
    """Return a message if the stage has exceeded its deadline, else None.

    `state` is the result of `advance_timer` for the same `progress`.
    """
    # Time that the step spent waiting for a flapping service does not count.
    limit = stage_limit(progress, deadlines) + state.outage_seconds
    duration = elapsed(state.still_since, state, now)
    if state.reads_since_step < MIN_READS or duration <= limit:
        return None
    return (
        f"no progress in stage {progress.stage} at step {progress.step} for {duration:.0f} s "
        f"(limit {limit:.0f} s): "
        f"{advice(progress.stage)}"
    )
