"""Effective training time ratio: the share of a job's time that went into kept steps."""

from datetime import datetime, timedelta

from raggrpo_api.status import AttemptRecord, Cause, JobStatus

HELD_BACK = frozenset({Cause.SUSPENDED, Cause.PREEMPTED, Cause.SUCCEEDED})
"""Causes after which the job waits on purpose."""


def seconds_down(status: JobStatus, now: datetime) -> int:
    """Return how long nothing ran before the newest attempt, which begins now.

    Time during which a user or a queue held the job back does not count.
    """
    for before in status.attempts[1:]:
        if before.cause in HELD_BACK:
            return 0
        if before.started:
            ended = before.started + timedelta(seconds=before.seconds)
            return max(0, round((now - ended).total_seconds()))
    return 0


def seconds_kept(record: AttemptRecord, seconds_per_step: float) -> float:
    """Return the time of the attempt's steps that no later attempt has to repeat."""
    begun = record.to_step if record.from_step is None else record.from_step
    return max(0, record.to_step - record.lost_steps - begun) * seconds_per_step


def effective_ratio(status: JobStatus, now: datetime) -> str:
    """Return the ratio with two decimals, as status shows it; empty while nothing is known."""
    record, spent = status.attempts[0], status.restart_state.spent
    kept, lasted = spent.kept_seconds, float(spent.active_seconds + spent.down_seconds)
    if record.cause is None and record.started:
        kept += seconds_kept(record, status.progress.seconds_per_step)
        lasted += (now - record.started).total_seconds()
    return f"{min(1.0, kept / lasted):.2f}" if kept and lasted > 0 else ""
