"""Clocks of deadlines, on which only time counts in which somebody looked. Pure: `now` is given."""

from datetime import datetime

from raggrpo_api.status import RestartState

from .conditions import parse_timestamp, timestamp

LOOK_SECONDS = 30.0
"""How often a look is written down; more often would only cost writes."""
GAP_SECONDS = 150.0
"""Longer than any regular time between two looks at a job: nobody looked."""


def looked(state: RestartState, now: datetime) -> RestartState:
    """Return the state with this look noted.

    After a gap, or when the clock was set back, every deadline begins anew: an operator that was
    down has seen nothing fail.
    """
    last = (now - parse_timestamp(state.looked)).total_seconds() if state.looked else None
    if last is None or not 0 <= last <= GAP_SECONDS:
        return state.model_copy(update={"looked": timestamp(now), "watched_since": timestamp(now)})
    if last >= LOOK_SECONDS:
        return state.model_copy(update={"looked": timestamp(now)})
    return state


def elapsed(since: str, state: RestartState, now: datetime) -> float:
    """Return the seconds from `since` until now, as far as somebody looked; 0 if it is empty."""
    if not since:
        return 0.0
    begun = parse_timestamp(since)
    if state.watched_since:
        watched = parse_timestamp(state.watched_since)
        begun = watched if begun > now else max(begun, watched)
    return max(0.0, (now - begun).total_seconds())
