"""`Lateness`: the delay between the requested and the actual start of a job's reconcile.

Time in which the operator did not observe a job does not count against deadlines, except the time
that a due job waits in a busy queue. After a restart of the operator, lateness is zero.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from raggrpo_operator.kube.cluster_objects import JobKey


@dataclass(slots=True)
class _Due:
    time: float
    lateness: float = 0.0
    """Maximum lateness, in seconds, of the failed reconciles since the last success."""


@dataclass
class Lateness:
    """Lateness by job; times are in seconds on a monotonic clock."""

    clock: Callable[[], float] = time.monotonic
    _due: dict[JobKey, _Due] = field(default_factory=dict)

    def of(self, key: JobKey) -> float:
        """Return the lateness, in seconds, of a reconcile that starts now."""
        due = self._due.get(key)
        return max(due.lateness, self.clock() - due.time) if due is not None else 0.0

    def record_success(self, key: JobKey, requeue_after: float | None) -> None:
        """Record a successful reconcile.

        The next reconcile is due in `requeue_after` seconds, or at the next event if it is None.
        """
        if requeue_after is None:
            self._due.pop(key, None)
        else:
            self._due[key] = _Due(self.clock() + requeue_after)

    def record_failure(self, key: JobKey) -> None:
        """Record a failed reconcile; earlier lateness is retained until a reconcile succeeds."""
        self._due[key] = _Due(self.clock(), max(0.0, self.of(key)))

    def remove(self, key: JobKey) -> None:
        """Drop the state of a deleted job."""
        self._due.pop(key, None)
