"""`ttlSecondsAfterFinished`: when a finished job is deleted. Pure."""

from datetime import datetime, timedelta

from raggrpo_api.job import RagGrpoJob


def seconds_until_expiry(job: RagGrpoJob, now: datetime) -> float | None:
    """Return the seconds until a finished job is deleted, or None if it is never deleted."""
    lifetime, ended = job.spec.ttl_seconds_after_finished, job.status.completion_time
    if lifetime < 0 or ended is None:
        return None
    expiry = ended + timedelta(seconds=lifetime)
    return max(0.0, (expiry - now).total_seconds())
