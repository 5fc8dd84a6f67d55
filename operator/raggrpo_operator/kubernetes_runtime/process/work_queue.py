"""`WorkQueue`: a queue of keys with exponential backoff that never processes a key concurrently.

A key that is added while it is being processed is processed again.

Keys belong to groups, which are served round-robin. A group may use at most as many workers as are
free. Therefore `k` saturating groups each use a fraction 1 / (k + 1) of the workers, and the same
fraction stays free for other groups (dynamic thresholds, Choudhury and Hahne 1998). Slow work
releases its worker after SLOW_SECONDS, so that slow work in many groups does not block the others.
"""

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from raggrpo_operator.errors import OperatorError

Key = TypeVar("Key", bound=Hashable)
FIRST_DELAY_SECONDS = 0.5
MAX_DELAY_SECONDS = 60.0
SLOW_SECONDS = 1.0
"""Seconds after which running work releases its worker."""
IN_PROGRESS_PER_WORKER = 4
"""Maximum keys in progress per worker, including slow work; the limit bounds memory."""
log = logging.getLogger(__name__)


class QueueObserver:
    """Callbacks of the queue; the methods of this base class do nothing."""

    def on_added(self, depth: int) -> None:
        """Handle a key that became due; `depth` keys are now waiting."""

    def on_started(self, waited: float, depth: int) -> None:
        """Handle the start of work on a key that waited `waited` seconds."""

    def on_finished(self, seconds: float, result: str) -> None:
        """Handle the end of work on a key; `result` is success, trouble or error."""

    def on_retry(self) -> None:
        """Handle a key that will be retried."""


class WorkQueue(Generic[Key]):
    """Runs `work(key)`, which returns the seconds until the key is due again, or None."""

    def __init__(
        self,
        work: Callable[[Key], Awaitable[float | None]],
        *,
        workers: int,
        group: Callable[[Key], Hashable],
        observer: QueueObserver | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._work = work
        self._workers = workers
        self._clock = clock
        self._group = group
        self._observer = observer or QueueObserver()
        self._due: dict[Hashable, dict[Key, float]] = {}
        """Group → due key → time when it became due; both in the order of service."""
        self._depth = 0
        self._running: dict[Key, float] = {}
        self._failures: dict[Key, int] = {}
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._wake = asyncio.Event()

    @property
    def longest_running(self) -> float:
        """Duration of the longest work in progress, in seconds."""
        return self._clock() - min(self._running.values()) if self._running else 0.0

    @property
    def depth(self) -> int:
        """Number of due keys that are not being processed."""
        return self._depth

    def add(self, key: Key) -> None:
        """Make the key due now."""
        self._cancel_timer(key)
        if not self._is_due(key):
            self._due.setdefault(self._group(key), {})[key] = self._clock()
            self._depth += 1
            self._observer.on_added(self._depth)
        self._wake.set()

    def add_after(self, key: Key, seconds: float) -> None:
        """Make the key due in `seconds`, unless the key is already due earlier."""
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if self._is_due(key) or (timer is not None and timer.when() <= loop.time() + seconds):
            return
        self._cancel_timer(key)
        self._timers[key] = loop.call_later(seconds, self.add, key)

    async def run(self) -> None:
        """Process keys until canceled; cancellation includes the work in progress."""
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    await self._wake.wait()
                    self._wake.clear()
                    while (key := self._next()) is not None:
                        waited = self._start(key)
                        self._observer.on_started(waited, self._depth)
                        group.create_task(self._run_one(key))
        finally:
            for key in list(self._timers):
                self._cancel_timer(key)

    def _is_due(self, key: Key) -> bool:
        return key in self._due.get(self._group(key), {})

    def _next(self) -> Key | None:
        """Return the next key to process, or None if no key may start."""
        quick_since = self._clock() - SLOW_SECONDS
        quick = [key for key, started in self._running.items() if started > quick_since]
        running_by_group = Counter(map(self._group, self._running))
        quick_by_group = Counter(map(self._group, quick))
        free = self._workers * IN_PROGRESS_PER_WORKER - len(self._running)
        free_workers = self._workers - len(quick)
        for group, keys in self._due.items():
            if running_by_group[group] < free and quick_by_group[group] < free_workers:
                for key in keys:
                    if key not in self._running:
                        return key
        return None

    def _start(self, key: Key) -> float:
        """Mark a due key as running and move its group to the end; return its waiting time."""
        group = self._group(key)
        now = self._clock()
        keys = self._due.pop(group)
        due = keys.pop(key)
        if keys:
            self._due[group] = keys
        self._depth -= 1
        self._running[key] = now
        asyncio.get_running_loop().call_later(SLOW_SECONDS, self._wake.set)
        return now - due

    async def _run_one(self, key: Key) -> None:
        result = "error"
        try:
            delay = await self._work(key)
            result = "success"
            self._failures.pop(key, None)
        except OperatorError as error:
            result = "trouble"
            delay = self._retry_delay(key, error.retryable)
            log.warning("%s: %s; retrying in %.1f s", key, error, delay)
        except Exception:
            delay = self._retry_delay(key, retryable=True)
            log.exception("%s: internal error; retrying in %.1f s", key, delay)
        finally:
            self._observer.on_finished(self._clock() - self._running.pop(key), result)
            self._wake.set()
        if delay is not None:
            self.add_after(key, delay)

    def _retry_delay(self, key: Key, retryable: bool) -> float:
        """Return a delay that doubles with every consecutive failure, with a jitter of ±20 %."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        self._observer.on_retry()
        backoff = FIRST_DELAY_SECONDS * 2.0 ** min(failures - 1, 20)
        delay = min(MAX_DELAY_SECONDS, backoff) if retryable else MAX_DELAY_SECONDS
        return delay * random.uniform(0.8, 1.2)

    def _cancel_timer(self, key: Key) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
