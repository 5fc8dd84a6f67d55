"""`RateLimit`: token buckets by job and name. Pure."""

from datetime import datetime, timedelta

from raggrpo_operator.kube.cluster_objects import JobKey


class RateLimit:
    """Token buckets of `burst` tokens, each refilled with one token every `seconds`.

    Names must be from a closed set, because a bucket exists until its job is removed.
    """

    def __init__(self, burst: int, seconds: float) -> None:
        self._interval = timedelta(seconds=seconds)
        self._tolerance = self._interval * (burst - 1)
        self._full_at: dict[JobKey, dict[str, datetime]] = {}

    def take(self, key: JobKey, name: str, now: datetime) -> bool:
        """Take a token, or return False if the bucket is empty."""
        buckets = self._full_at.setdefault(key, {})
        full_at = max(buckets.get(name, now), now)
        if full_at - now > self._tolerance:
            return False
        buckets[name] = full_at + self._interval
        return True

    def remove(self, key: JobKey) -> None:
        """Drop the buckets of a deleted job."""
        self._full_at.pop(key, None)
