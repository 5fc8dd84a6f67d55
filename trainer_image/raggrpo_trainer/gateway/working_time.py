"""Timeouts on a clock that may pause."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

POLL_SECONDS = 1.0


class Timer:
    """The time that remains of a timeout that starts now."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._deadline = clock() + seconds

    @property
    def remaining(self) -> float:
        """The remaining seconds, at least 0."""
        return max(0.0, self._deadline - self.clock())


async def within(seconds: float, clock: Callable[[], float], work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. Raises TimeoutError after `seconds` on `clock`."""
    task = asyncio.ensure_future(work)
    deadline = clock() + seconds
    try:
        while (remaining := deadline - clock()) > 0:
            if (await asyncio.wait({task}, timeout=min(remaining, POLL_SECONDS)))[0]:
                return task.result()
        raise TimeoutError
    finally:
        task.cancel()
