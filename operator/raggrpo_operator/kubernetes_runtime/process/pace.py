"""`Pace`: how often to poll and write each job, so that many jobs stay affordable. Pure."""

from raggrpo_operator.kube.cluster_objects import JobKey

POLLS_PER_SECOND = 20.0
"""Rounds that only poll a running attempt, over all jobs; each takes 10 to 20 ms of one core."""
PROGRESS_WRITES_PER_SECOND = 10.0
"""Status writes that change only the progress, over all jobs; they load the API server most."""


class Pace:
    """Applies the settings while there are few jobs; with many, each has its turn less often."""

    def __init__(self, poll_seconds: float, status_seconds: float) -> None:
        self._poll_seconds, self._status_seconds = poll_seconds, status_seconds
        self._busy: set[JobKey] = set()

    @property
    def poll_seconds(self) -> float:
        """Return the time between two polls of a running attempt."""
        return max(self._poll_seconds, len(self._busy) / POLLS_PER_SECOND)

    @property
    def status_seconds(self) -> float:
        """Return the time between two writes of a job's progress."""
        return max(self._status_seconds, len(self._busy) / PROGRESS_WRITES_PER_SECOND)

    def note(self, key: JobKey, *, is_busy: bool) -> None:
        """Record whether a job has to be polled, not only looked at after an event."""
        if is_busy:
            self._busy.add(key)
        else:
            self._busy.discard(key)
