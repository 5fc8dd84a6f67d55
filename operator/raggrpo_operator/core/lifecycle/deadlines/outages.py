"""Waiting for services that are down: the condition, and a clock that a finished step ends. Pure.

Neither an answer in between nor a new attempt starts that clock anew, or a service that flaps, or
a driver that says so, could keep a job waiting for ever.
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

REMEDY = "recovery.deadlines.outageSeconds gives it more time"


def advance_timer(state: WatchState, progress: Progress, now: datetime) -> WatchState:
    """Return the clock of outages after one successful read of /progress."""
    is_known = state.outage_since is not None or state.outage_seconds > 0
    if is_known and progress.step > state.outage_step:  # the step that waited is finished
        state, is_known = forgotten(stopped(state, now)), False
    if progress.stage is not Stage.WAITING_FOR_ENDPOINT:
        return stopped(state, now)
    step = state.outage_step if is_known else progress.step
    return replace(state, outage_since=state.outage_since or now, outage_step=step)


def forgotten(state: WatchState) -> WatchState:
    """Return the clock at zero."""
    return replace(state, outage_since=None, outage_seconds=0.0, outage_step=0)


def stopped(state: WatchState, now: datetime) -> WatchState:
    """Return the clock stopped, and that of the stage that waited put forward by as much."""
    if state.outage_since is None:
        return state
    waited = elapsed(state.outage_since, state, now)
    still = state.still_since
    return replace(
        state,
        outage_since=None,
        outage_seconds=round(state.outage_seconds + waited, 1),
        still_since=still and min(now, still + timedelta(seconds=waited)),
    )


def overdue(this: Round) -> str | None:
    """Return a message if the job has waited for longer than it may, else None."""
    watch, limit = this.state.watch, this.spec.recovery.deadlines.outage_seconds
    waited = watch.outage_seconds + this.elapsed(watch.outage_since)
    if waited <= limit:
        return None
    return f"waited {waited:.0f} s for a service that is down, limit {limit} s"


def told(outages: Sequence[EndpointOutage]) -> str:
    """Return a sentence per service: name, since when, cause."""
    named = "; ".join(f"{each.name} since {each.since}: {each.cause}" for each in outages)
    return named or "the driver names no service"


def waiting(this: Round, message: str) -> None:
    """Say that the job waits, for what and since when."""
    this.set_condition(
        ConditionType.WAITING_FOR_ENDPOINT,
        True,
        ConditionReason.ENDPOINT_DOWN,
        f"{message}; {REMEDY}",
    )


def over(this: Round, reason: ConditionReason) -> None:
    """Say that the job no longer waits, if it did."""
    this.store(stopped(this.state.watch, this.now))
    if is_true(this.status, ConditionType.WAITING_FOR_ENDPOINT):
        this.set_condition(ConditionType.WAITING_FOR_ENDPOINT, False, reason)
