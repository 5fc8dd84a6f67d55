"""Service outages: the WaitingForEndpoint condition and the outage timer. Pure.

During an attempt, only a completed step resets the timer. Therefore neither a flapping service nor
a driver that reports wrong stages can keep a job waiting forever.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from raggrpo_api.status.conditions import ConditionType
from raggrpo_api.status.reasons import ConditionReason
from raggrpo_api.status.restart_state import WatchState
from raggrpo_api.trainer.progress import EndpointOutage, Progress, Stage
from raggrpo_operator.core.lifecycle.round import Round
from raggrpo_operator.core.state.conditions import is_true
from raggrpo_operator.core.state.observed_time import elapsed

REMEDY = "to wait longer, increase recovery.deadlines.outageSeconds"


def advance_timer(state: WatchState, progress: Progress, now: datetime) -> WatchState:
    """Return `state` with the outage timer advanced after a successful read of /progress."""
    is_running = state.outage_since is not None or state.outage_seconds > 0
    if is_running and progress.step > state.outage_step:  # the step that waited has completed
        state, is_running = reset_timer(pause_timer(state, now)), False
    if progress.stage is not Stage.WAITING_FOR_ENDPOINT:
        return pause_timer(state, now)
    step = state.outage_step if is_running else progress.step
    return replace(state, outage_since=state.outage_since or now, outage_step=step)


def reset_timer(state: WatchState) -> WatchState:
    """Return `state` with the outage timer reset to zero."""
    return replace(state, outage_since=None, outage_seconds=0.0, outage_step=0)


def pause_timer(state: WatchState, now: datetime) -> WatchState:
    """Return `state` with the outage timer paused.

    The start of the current stage is moved forward by the time spent waiting, so that the outage
    does not count against the deadline of the stage.
    """
    if state.outage_since is None:
        return state
    waited = elapsed(state.outage_since, state, now)
    stage_since = state.still_since
    return replace(
        state,
        outage_since=None,
        outage_seconds=round(state.outage_seconds + waited, 1),
        still_since=stage_since and min(now, stage_since + timedelta(seconds=waited)),
    )


def timeout_message(state: WatchState, limit: int, now: datetime) -> str | None:
    """Return a message if the outage has exceeded `limit` seconds, else None."""
    waited = state.outage_seconds + elapsed(state.outage_since, state, now)
    if waited <= limit:
        return None
    return f"service unavailable for {waited:.0f} s (limit {limit} s)"


def describe(outages: Sequence[EndpointOutage]) -> str:
    """Return one clause per unavailable service with its name, start of the outage and cause."""
    clauses = "; ".join(f"{each.name} since {each.since}: {each.cause}" for each in outages)
    return clauses or "the driver reported no service"


def set_waiting(this: Round, message: str) -> None:
    """Set WaitingForEndpoint to True with the message and the remedy."""
    this.set_condition(
        ConditionType.WAITING_FOR_ENDPOINT,
        True,
        ConditionReason.ENDPOINT_DOWN,
        f"{message}; {REMEDY}",
    )


def clear_waiting(this: Round, reason: ConditionReason) -> None:
    """Pause the outage timer, and set WaitingForEndpoint to False if it was True."""
    this.store(pause_timer(this.state.watch, this.now))
    if is_true(this.status, ConditionType.WAITING_FOR_ENDPOINT):
        this.set_condition(ConditionType.WAITING_FOR_ENDPOINT, False, reason)
