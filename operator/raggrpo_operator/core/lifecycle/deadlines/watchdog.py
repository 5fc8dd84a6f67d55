"""The watchdog: a clock per stage and the step-time rule. Time nobody observed never counts."""

from dataclasses import replace
from datetime import datetime

from raggrpo_api.spec.recovery import Deadlines
from raggrpo_api.status.restart_state import WatchState
from raggrpo_api.trainer.progress import Progress
from raggrpo_operator.core.state.observed_time import elapsed

from .outages import advance_timer
from .stage_deadlines import advice, stage_limit

ENOUGH_READS = 2
"""One read shows where the driver is, another that it is still there."""


def watch(state: WatchState, progress: Progress, now: datetime) -> WatchState:
    """Return the clock after one successful read of /progress.

    A step finished between two reads restarts it too: every read may fall into a save. While a
    service is down, the clock of the stage that waits stands still.
    """
    state = advance_timer(state, progress, now)
    if state.outage_since is not None:
        return replace(state, unread_since=None)
    is_still = (state.stage, state.step_seen) == (str(progress.stage), progress.step)
    is_still = is_still and state.still_since is not None
    return replace(
        state,
        unread_since=None,
        stage=str(progress.stage),
        step_seen=progress.step,
        still_since=state.still_since if is_still else now,
        reads_since_step=min(ENOUGH_READS, state.reads_since_step + 1) if is_still else 1,
    )


def overdue(
    state: WatchState, progress: Progress, deadlines: Deadlines, now: datetime
) -> str | None:
    """Return a message about what is overdue, None if nothing is.

    `state` is the result of `watch` on the same reading.
    """
    # Services that come and go leave a step as much time again as it has waited for them.
    limit = stage_limit(progress, deadlines) + state.outage_seconds
    lasted = elapsed(state.still_since, state, now)
    if state.reads_since_step < ENOUGH_READS or lasted <= limit:
        return None
    return (
        f"stage {progress.stage} at step {progress.step} for {lasted:.0f} s, limit {limit:.0f} s: "
        f"{advice(progress.stage)}"
    )
