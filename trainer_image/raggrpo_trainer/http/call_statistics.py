"""Latencies and failures of the calls to one service."""

import math
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from raggrpo_trainer.call_failures import FailureCause

MAX_LATENCIES = 4096


@dataclass(frozen=True)
class CallSummary:
    """Calls to one service: latency percentiles in seconds, and failures by cause."""

    answered: int
    """Number of calls with a usable response; a refused call is a failure."""
    p50: float
    p95: float
    p99: float
    failures: Mapping[FailureCause, int]
    retries: int = 0
    """Number of requests that repeated a failed request of the same call."""


@dataclass
class CallStatistics:
    """Failures, and the latencies of the last MAX_LATENCIES answered calls of one service."""

    answered: int = 0
    retries: int = 0
    failures: Counter[FailureCause] = field(default_factory=Counter)
    _seconds: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_LATENCIES))

    def record(self, seconds: float) -> None:
        """Record the latency of an answered call."""
        self.answered += 1
        self._seconds.append(seconds)

    def summary(self) -> CallSummary:
        """Return the summary; its nearest-rank percentiles are NaN if no call was answered."""
        ordered = sorted(self._seconds)
        p50, p95, p99 = (_nearest_rank(ordered, percent) for percent in (50, 95, 99))
        return CallSummary(self.answered, p50, p95, p99, dict(self.failures), self.retries)


def _nearest_rank(ordered: list[float], percent: int) -> float:
    return ordered[math.ceil(len(ordered) * percent / 100) - 1] if ordered else math.nan
