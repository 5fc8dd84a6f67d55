"""Observed time: deadlines count only time in which the operator observed the job. Pure."""

from dataclasses import replace
from datetime import datetime

from raggrpo_api.status.restart_state import WatchState

RECORD_SECONDS = 30.0
"""Minimum seconds between two recorded observations, each of which costs a status write."""
GAP_SECONDS = 150.0
"""Seconds between observations above which the operator is assumed not to have been running.

The value exceeds any `requeue_after` while deadlines run.
"""


def record_observation(watch: WatchState, now: datetime, delay_seconds: float = 0.0) -> WatchState:
    """Return `watch` with this observation recorded.

    After a gap of more than GAP_SECONDS, or if the clock was set back, all deadlines start again,
    because an operator that was not running cannot have observed a hang. `delay_seconds`, by which
    other jobs delayed the round, extends the permitted gap.
    """
    last = (now - watch.looked).total_seconds() if watch.looked is not None else None
    if last is None or not 0 <= last <= GAP_SECONDS + delay_seconds:
        return replace(watch, looked=now, watched_since=now)
    return replace(watch, looked=now) if last >= RECORD_SECONDS else watch


def elapsed(since: datetime | None, watch: WatchState, now: datetime) -> float:
    """Return the observed seconds from `since` to `now`, or 0 if `since` is None."""
    if since is None:
        return 0.0
    if (watched := watch.watched_since) is not None:
        since = watched if since > now else max(since, watched)
    return max(0.0, (now - since).total_seconds())
