"""`WorkQueue`: keys that need work, never processed twice at once, retried with a growing delay.

Knows nothing about the work itself. A key added during its processing is processed again.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from raggrpo_operator.errors import OperatorError

Key = TypeVar("Key", bound=Hashable)
FIRST_DELAY_SECONDS = 0.5
MAX_DELAY_SECONDS = 60.0
log = logging.getLogger(__name__)


class QueueObserver:
    """Receives the queue's events; this base class ignores them."""

    def added(self, depth: int) -> None:
        """Handle a key that became due; `depth` keys are now waiting."""

    def begun(self, waited: float, depth: int) -> None:
        """Handle the start of work on a key that was due for `waited` seconds."""

    def ended(self, seconds: float, result: str) -> None:
        """Handle the end of work on a key; the result is success, trouble or error."""

    def retried(self) -> None:
        """Handle a key that will be tried again."""


class WorkQueue(Generic[Key]):
    """Runs `work(key)`, which returns the seconds until the key is due again, None for never."""

    def __init__(
        self,
        work: Callable[[Key], Awaitable[float | None]],
        *,
        workers: int,
        observer: QueueObserver | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._work, self._workers, self._clock = work, workers, clock
        self._observer = observer or QueueObserver()
        self._due: dict[Key, float] = {}  # key → when it became due, in order of arrival
        self._running: dict[Key, float] = {}
        self._failures: dict[Key, int] = {}
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._wake = asyncio.Event()

    @property
    def longest_running(self) -> float:
        """Seconds since the start of the oldest work in progress."""
        return self._clock() - min(self._running.values()) if self._running else 0.0

    @property
    def depth(self) -> int:
        """Number of keys that are due but not yet being processed."""
        return len(self._due)

    def add(self, key: Key) -> None:
        """Make the key due now."""
        self._cancel_timer(key)
        if key not in self._due:
            self._due[key] = self._clock()
            self._observer.added(len(self._due))
        self._wake.set()

    def add_after(self, key: Key, seconds: float) -> None:
        """Make the key due later, unless it is due already or will be due sooner."""
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if key in self._due or (timer is not None and timer.when() <= loop.time() + seconds):
            return
        self._cancel_timer(key)
        self._timers[key] = loop.call_later(seconds, self.add, key)

    def forget(self, key: Key) -> None:
        """Drop the timer and the failures of a key that no longer exists."""
        self._cancel_timer(key)
        self._failures.pop(key, None)

    async def run(self) -> None:
        """Process keys until cancelled, which also cancels the work in progress."""
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    await self._wake.wait()
                    self._wake.clear()
                    for key in self._startable():
                        self._running[key] = self._clock()
                        waited = self._clock() - self._due.pop(key)
                        self._observer.begun(waited, len(self._due))
                        group.create_task(self._run_one(key))
        finally:
            for key in list(self._timers):
                self._cancel_timer(key)

    def _startable(self) -> list[Key]:
        free = self._workers - len(self._running)
        return [key for key in self._due if key not in self._running][:free]

    async def _run_one(self, key: Key) -> None:
        result = "error"
        try:
            delay = await self._work(key)
            result = "success"
            self._failures.pop(key, None)
        except OperatorError as error:
            result = "trouble"
            delay = self._retry_delay(key, error.retryable)
            log.warning("%s; next try in %.1f s", error, delay)
        except Exception:
            delay = self._retry_delay(key, retryable=True)
            log.exception("a mistake in the operator; next try in %.1f s", delay)
        finally:
            self._observer.ended(self._clock() - self._running.pop(key), result)
            self._wake.set()
        if delay is not None:
            self.add_after(key, delay)

    def _retry_delay(self, key: Key, retryable: bool) -> float:
        """Double the delay with every failure in a row, ±20 % so that jobs spread out."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        self._observer.retried()
        grown = FIRST_DELAY_SECONDS * 2.0 ** min(failures - 1, 20)
        delay = min(MAX_DELAY_SECONDS, grown) if retryable else MAX_DELAY_SECONDS
        return delay * random.uniform(0.8, 1.2)

    def _cancel_timer(self, key: Key) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
