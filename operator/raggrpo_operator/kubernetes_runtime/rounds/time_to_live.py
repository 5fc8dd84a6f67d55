"""`ttlSecondsAfterFinished`: the time until a finished job is deleted. Pure."""

from datetime import datetime, timedelta

from raggrpo_api.job import RagGrpoJob


def seconds_until_expiry(job: RagGrpoJob, now: datetime) -> float | None:
    """Return the seconds until the job is deleted, or None if it is unfinished or has no TTL."""
    ttl = job.spec.ttl_seconds_after_finished
    completion = job.status.completion_time
    if ttl < 0 or completion is None:
        return None
    expiry = completion + timedelta(seconds=ttl)
    return max(0.0, (expiry - now).total_seconds())
