"""`activeDeadlineSeconds`: the time that a job may take in all. Pure.

It counts from the job's first round: checks, waiting for nodes, attempts, and delays between them.
Only what the user or a queue holds back on purpose is left out. In a cluster, time in which no
operator looked counts too, because the job's pods run on meanwhile.
"""

import math
from dataclasses import replace

from raggrpo_api.status.job_status import JobStatus
from raggrpo_operator.core.lifecycle.round import Round


def run_clock(this: Round, *, is_held_back: bool) -> None:
    """Let the clock run, or stop it while the job is held back."""
    spent = this.state.spent
    if spent.counted_since is None and not is_held_back:
        if not spent.counted_seconds:  # the first round, or the first that knows this clock
            began = this.record.started if this.status.attempts and not this.record.cause else None
            spent = replace(spent, counted_seconds=spent.active_seconds)
            this.store(replace(spent, counted_since=began or this.now))
        else:
            this.store(replace(spent, counted_since=this.now))
    elif spent.counted_since is not None and is_held_back:
        counted = round(_counted(this))
        this.store(replace(spent, counted_since=None, counted_seconds=counted))


def paused_at_last_observation(status: JobStatus) -> JobStatus:
    """Return the status with the clock stopped at the last look, where nothing ran since then.

    On one machine the job ends with whoever looks after it, however that ends.
    """
    state = status.restart_state
    spent, looked = state.spent, state.watch.looked
    if (since := spent.counted_since) is None:
        return status
    seen = max(0.0, (looked - since).total_seconds()) if looked is not None else 0.0
    counted = max(1, spent.counted_seconds + round(seen))  # 0 would mean: not begun
    spent = replace(spent, counted_since=None, counted_seconds=counted)
    return replace(status, restart_state=state.with_group(spent))


def seconds_left(this: Round) -> float:
    """Return how long the job may go on; infinite without a deadline, never negative."""
    limit = this.spec.active_deadline_seconds
    return max(0.0, limit - _counted(this)) if limit else math.inf


def exceeded(this: Round) -> str:
    """Return a message if the job has taken longer than it may, else ""."""
    limit = this.spec.active_deadline_seconds
    return f"activeDeadlineSeconds {limit} is over" if seconds_left(this) <= 0 else ""


def _counted(this: Round) -> float:
    spent = this.state.spent
    if spent.counted_since is None:
        return spent.counted_seconds
    return spent.counted_seconds + max(0.0, (this.now - spent.counted_since).total_seconds())
