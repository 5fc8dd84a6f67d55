"""`Lateness`: how much later than asked each job is looked at, because others have their turns.

A job that waits for its turn is watched all the same: nobody was away. What a process that has
ended was asked for is unknown to the next one, which is late for nothing.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from raggrpo_operator.kube.cluster_objects import JobKey


@dataclass(slots=True)
class _Turn:
    due: float
    late: float = 0.0
    """Of earlier tries since the last look that succeeded."""


@dataclass
class Lateness:
    """All times are seconds on one monotonic clock."""

    clock: Callable[[], float] = time.monotonic
    _turns: dict[JobKey, _Turn] = field(default_factory=dict)

    def of(self, key: JobKey) -> float:
        """Return by how much the look that begins now is late."""
        turn = self._turns.get(key)
        return max(turn.late, self.clock() - turn.due) if turn is not None else 0.0

    def record_success(self, key: JobKey, ask: float | None) -> None:
        """Note a look that succeeded; the next is asked for in so many seconds, None: never."""
        if ask is None:
            self._turns.pop(key, None)
        else:
            self._turns[key] = _Turn(self.clock() + ask)

    def record_failure(self, key: JobKey) -> None:
        """Note a look that failed. Waiting for the next try is no lateness: nothing is seen."""
        self._turns[key] = _Turn(self.clock(), max(0.0, self.of(key)))

    def remove(self, key: JobKey) -> None:
        """Drop a job that is gone."""
        self._turns.pop(key, None)
