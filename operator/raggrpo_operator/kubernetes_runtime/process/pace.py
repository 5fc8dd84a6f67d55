"""`Pace`: how often a job is asked and written, so that all jobs together stay bearable. Pure."""

from raggrpo_operator.kube.cluster_objects import JobKey

POLLS_PER_SECOND = 20.0
"""Rounds that only follow a running attempt, of all jobs; each takes 10 to 20 ms of one core."""
PROGRESS_WRITES_PER_SECOND = 10.0
"""Status writes that differ in progress only, of all jobs: they are what an API server feels."""


class Pace:
    """The settings hold for few jobs; with many each one's turn comes more rarely."""

    def __init__(self, poll_seconds: float, status_seconds: float) -> None:
        self._poll_seconds, self._status_seconds = poll_seconds, status_seconds
        self._busy: set[JobKey] = set()

    @property
    def poll_seconds(self) -> float:
        """Return the time between two looks at a running attempt."""
        return max(self._poll_seconds, len(self._busy) / POLLS_PER_SECOND)

    @property
    def status_seconds(self) -> float:
        """Return the time between two writes of a job's progress."""
        return max(self._status_seconds, len(self._busy) / PROGRESS_WRITES_PER_SECOND)

    def note(self, key: JobKey, *, is_busy: bool) -> None:
        """Take note whether a job has to be looked at without an event."""
        if is_busy:
            self._busy.add(key)
        else:
            self._busy.discard(key)
