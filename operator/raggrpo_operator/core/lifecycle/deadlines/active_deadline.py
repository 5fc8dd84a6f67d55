"""`activeDeadlineSeconds`: the total time that a job may take. Pure.

The timer starts with the job's first round and covers preflight, provisioning, attempts and the
delays between attempts. The timer pauses while the job is suspended or queued. In a cluster, time
without a running operator counts too, because the job's pods continue to run.
"""

import math
from dataclasses import replace
from datetime import datetime

from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.status.restart_state import SpentTime


def advance_timer(
    spent: SpentTime, running_since: datetime | None, now: datetime, *, is_held_back: bool
) -> SpentTime:
    """Return `spent` with the timer running, or paused while the job is suspended or queued.

    `running_since` is the start of the running attempt, or None. If the status was written by a
    release without this timer, the timer starts at `running_since`.
    """
    if spent.counted_since is None and not is_held_back:
        if not spent.counted_seconds:  # the first round, or the first with this timer
            started = running_since or now
            return replace(spent, counted_seconds=spent.active_seconds, counted_since=started)
        return replace(spent, counted_since=now)
    if spent.counted_since is not None and is_held_back:
        return replace(
            spent, counted_since=None, counted_seconds=round(_counted_seconds(spent, now))
        )
    return spent


def paused_at_last_observation(status: JobStatus) -> JobStatus:
    """Return the status with the timer paused at the time of the last observation.

    Used for local runs, whose jobs stop when `raggrpo run` exits.
    """
    state = status.restart_state
    spent, observed = state.spent, state.watch.looked
    if (since := spent.counted_since) is None:
        return status
    elapsed = max(0.0, (observed - since).total_seconds()) if observed is not None else 0.0
    counted = max(1, spent.counted_seconds + round(elapsed))  # 0 would mean: the timer never ran
    spent = replace(spent, counted_since=None, counted_seconds=counted)
    return replace(status, restart_state=state.with_group(spent))


def remaining_seconds(limit: int, spent: SpentTime, now: datetime) -> float:
    """Return the seconds until the deadline, at least 0, or infinity if `limit` is 0."""
    return max(0.0, limit - _counted_seconds(spent, now)) if limit else math.inf


def timeout_message(limit: int, spent: SpentTime, now: datetime) -> str:
    """Return a message if the job has exceeded its deadline, else ""."""
    is_exceeded = remaining_seconds(limit, spent, now) <= 0
    return f"the job exceeded activeDeadlineSeconds ({limit} s)" if is_exceeded else ""


def _counted_seconds(spent: SpentTime, now: datetime) -> float:
    if spent.counted_since is None:
        return spent.counted_seconds
    return spent.counted_seconds + max(0.0, (now - spent.counted_since).total_seconds())
