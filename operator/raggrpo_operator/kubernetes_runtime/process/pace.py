"""`Pace`: how often to poll and write each job, so that many jobs stay affordable. Pure."""

from collections import defaultdict

from raggrpo_operator.kube.cluster_objects import JobKey

POLLS_PER_SECOND = 20.0
"""Rounds that only poll a running attempt, over all jobs; each takes 10 to 20 ms of one core."""
PROGRESS_WRITES_PER_SECOND = 10.0
"""Status writes that change only the progress, over all jobs; they load the API server most."""


class Pace:
    """Applies the settings while there are few jobs; with many, each has its turn less often.

    Namespaces have equal shares, so that the jobs of one do not slow down those of another.
    """

    def __init__(self, poll_seconds: float, status_seconds: float) -> None:
        self._poll_seconds, self._status_seconds = poll_seconds, status_seconds
        self._busy: defaultdict[str, set[str]] = defaultdict(set)

    def poll_seconds(self, key: JobKey) -> float:
        """Return the time between two polls of this job's running attempt."""
        return max(self._poll_seconds, self._competing(key) / POLLS_PER_SECOND)

    def status_seconds(self, key: JobKey) -> float:
        """Return the time between two writes of this job's progress."""
        return max(self._status_seconds, self._competing(key) / PROGRESS_WRITES_PER_SECOND)

    def set_busy(self, key: JobKey, *, is_busy: bool) -> None:
        """Record whether a job has to be polled, not only looked at after an event."""
        if is_busy:
            self._busy[key.namespace].add(key.name)
            return
        self._busy[key.namespace].discard(key.name)
        if not self._busy[key.namespace]:
            del self._busy[key.namespace]

    def _competing(self, key: JobKey) -> int:
        """Return how many jobs there would be if each namespace had as many as this one."""
        return len(self._busy.get(key.namespace, ())) * len(self._busy)
