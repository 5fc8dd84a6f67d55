"""`ttlSecondsAfterFinished`: the time until a finished job is deleted. Pure."""

from datetime import datetime, timedelta

from raggrpo_api.job import RagGrpoJob
from raggrpo_operator.core.lifecycle.after_attempt.push import is_push_due


def seconds_until_expiry(job: RagGrpoJob, now: datetime) -> float | None:
    """Return the seconds until the job is deleted.

    None if the job is unfinished, has no TTL, or its results have not been pushed yet.
    """
    ttl = job.spec.ttl_seconds_after_finished
    completion = job.status.completion_time
    if ttl < 0 or completion is None or is_push_due(job, job.status):
        return None
    expiry = completion + timedelta(seconds=ttl)
    return max(0.0, (expiry - now).total_seconds())
