"""Time accounting: share of time spent on retained steps (ETTR) and on service outages. Pure.

ETTR excludes the time spent waiting for services.
"""

from dataclasses import replace
from datetime import datetime, timedelta

from raggrpo_api.status.attempts import AttemptRecord
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.job_status import JobStatus

HELD_BACK_CAUSES = frozenset({Cause.SUSPENDED, Cause.PREEMPTED, Cause.SUCCEEDED})
"""Causes after which the time until the next attempt is not downtime."""


def downtime_seconds(status: JobStatus, now: datetime) -> int:
    """Return the seconds between the end of the previous attempt and the start of the newest.

    The newest attempt starts at `now`. Returns 0 if the previous attempt ended with one of
    HELD_BACK_CAUSES.
    """
    for previous in status.attempts[1:]:
        if previous.cause in HELD_BACK_CAUSES:
            return 0
        if previous.started:
            ended = previous.started + timedelta(seconds=previous.seconds)
            return max(0, round((now - ended).total_seconds()))
    return 0


def retained_seconds(record: AttemptRecord, seconds_per_step: float) -> float:
    """Return the seconds that the attempt spent on steps that no later attempt repeats."""
    first_step = record.to_step if record.from_step is None else record.from_step
    return max(0, record.to_step - record.lost_steps - first_step) * seconds_per_step


def with_ratios(status: JobStatus, now: datetime) -> JobStatus:
    """Return the status with ETTR and waiting ratio, to two decimals, or "" while unknown."""
    record, spent = status.attempts[0], status.restart_state.spent
    retained = spent.kept_seconds
    total = float(spent.active_seconds + spent.down_seconds)
    waited = float(spent.waiting_seconds)
    if record.cause is None and record.started:
        running = max(0.0, (now - record.started).total_seconds())
        retained += retained_seconds(record, status.progress.seconds_per_step)
        total += running
        waited += min(running, record.waiting_seconds)
    return replace(
        status,
        effective_training_time_ratio=_ratio(retained, total - waited) if retained else "",
        waiting_time_ratio=_ratio(waited, total) if waited else "",
    )


def _ratio(part: float, whole: float) -> str:
    return f"{min(1.0, part / whole):.2f}" if whole > 0 else ""
