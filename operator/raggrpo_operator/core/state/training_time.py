"""Where a job's time went: the share in kept steps, and the share of waiting for services.

Waiting for a service is neither training nor recovery, so it has a share of its own.
"""

from dataclasses import replace
from datetime import datetime, timedelta

from raggrpo_api.status.attempts import AttemptRecord
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.job_status import JobStatus

HELD_BACK = frozenset({Cause.SUSPENDED, Cause.PREEMPTED, Cause.SUCCEEDED})
"""Causes after which the job waits on purpose."""


def downtime_seconds(status: JobStatus, now: datetime) -> int:
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


def retained_seconds(record: AttemptRecord, seconds_per_step: float) -> float:
    """Return the time of the attempt's steps that no later attempt has to repeat."""
    begun = record.to_step if record.from_step is None else record.from_step
    return max(0, record.to_step - record.lost_steps - begun) * seconds_per_step


def with_ratios(status: JobStatus, now: datetime) -> JobStatus:
    """Return the status with both ratios, of two decimals; empty while nothing is known."""
    record, spent = status.attempts[0], status.restart_state.spent
    kept, lasted = spent.kept_seconds, float(spent.active_seconds + spent.down_seconds)
    waited = float(spent.waiting_seconds)
    if record.cause is None and record.started:
        running = max(0.0, (now - record.started).total_seconds())
        kept += retained_seconds(record, status.progress.seconds_per_step)
        lasted += running
        waited += min(running, record.waiting_seconds)
    return replace(
        status,
        effective_training_time_ratio=_ratio(kept, lasted - waited) if kept else "",
        waiting_time_ratio=_ratio(waited, lasted) if waited else "",
    )


def _ratio(part: float, whole: float) -> str:
    return f"{min(1.0, part / whole):.2f}" if whole > 0 else ""
