"""Decides when a finished job is removed. Pure."""

from datetime import datetime, timedelta

from raggrpo_api.job import RagGrpoJob


def seconds_until_expiry(job: RagGrpoJob, now: datetime) -> float | None:
    """Return how long a finished job is kept, 0 if expired, None if kept forever."""
    lifetime, ended = job.spec.ttl_seconds_after_finished, job.status.completion_time
    if lifetime < 0 or ended is None:
        return None
    over = ended + timedelta(seconds=lifetime)
    return max(0.0, (over - now).total_seconds())
