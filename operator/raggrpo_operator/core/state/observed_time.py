"""Deadline clocks. Only time during which the operator observed the job counts. Pure."""

from dataclasses import replace
from datetime import datetime

from raggrpo_api.status.restart_state import WatchState

LOOK_SECONDS = 30.0
"""How often an observation is recorded; more often would only cost writes."""
GAP_SECONDS = 150.0
"""Longer than `decide` ever asks to wait while deadlines run: the operator was away."""


def record_observation(watch: WatchState, now: datetime, late_seconds: float = 0.0) -> WatchState:
    """Return the state with this observation recorded.

    After a gap, or when the clock was set back, every deadline begins anew: an operator that was
    down has not seen anything hang. One that had other jobs to look at first was not down: by
    `late_seconds` the gap may be longer.
    """
    last = (now - watch.looked).total_seconds() if watch.looked is not None else None
    if last is None or not 0 <= last <= GAP_SECONDS + late_seconds:
        return replace(watch, looked=now, watched_since=now)
    return replace(watch, looked=now) if last >= LOOK_SECONDS else watch


def elapsed(since: datetime | None, watch: WatchState, now: datetime) -> float:
    """Return the seconds from `since` until now, counting only observed time; 0 if it is None."""
    if since is None:
        return 0.0
    if (watched := watch.watched_since) is not None:
        since = watched if since > now else max(since, watched)
    return max(0.0, (now - since).total_seconds())
