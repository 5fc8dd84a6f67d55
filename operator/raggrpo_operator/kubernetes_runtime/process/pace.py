"""`Pace`: intervals between polls and progress writes of each job, depending on the load. Pure."""

from collections import defaultdict

from raggrpo_operator.kube.cluster_objects import JobKey

POLLS_PER_SECOND = 20.0
"""Maximum polls of running attempts, over all jobs; each takes 10 to 20 ms of CPU time."""
PROGRESS_WRITES_PER_SECOND = 10.0
"""Maximum progress-only status writes, over all jobs; these writes dominate the API load."""


class Pace:
    """Intervals from the settings, increased if many jobs are busy.

    Namespaces have equal shares, so jobs in one namespace do not slow down jobs in another.
    """

    def __init__(self, poll_seconds: float, status_seconds: float) -> None:
        self._poll_seconds, self._status_seconds = poll_seconds, status_seconds
        self._busy: defaultdict[str, set[str]] = defaultdict(set)

    def poll_seconds(self, key: JobKey) -> float:
        """Return the interval between polls of the job's running attempt."""
        return max(self._poll_seconds, self._competing(key) / POLLS_PER_SECOND)

    def status_seconds(self, key: JobKey) -> float:
        """Return the interval between writes of the job's progress."""
        return max(self._status_seconds, self._competing(key) / PROGRESS_WRITES_PER_SECOND)

    def set_busy(self, key: JobKey, *, is_busy: bool) -> None:
        """Record whether a job is polled (busy), or only reconciled after events."""
        if is_busy:
            self._busy[key.namespace].add(key.name)
            return
        self._busy[key.namespace].discard(key.name)
        if not self._busy[key.namespace]:
            del self._busy[key.namespace]

    def _competing(self, key: JobKey) -> int:
        """Return the number of busy jobs if each namespace had as many as that of `key`.

        Equal counts give each namespace an equal share.
        """
        return len(self._busy.get(key.namespace, ())) * len(self._busy)
