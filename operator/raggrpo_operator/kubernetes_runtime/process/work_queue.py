"""`WorkQueue`: keys that need work, never processed twice at once, retried with a growing delay.

Knows nothing about the work itself. A key added during its processing is processed again.

Keys belong to groups, which are served in turn. A group may hold as many workers as it leaves free
for the others, so that each of `k` greedy groups holds one in `k + 1` and a worker is left for
whoever comes next (dynamic thresholds, Choudhury and Hahne 1998). Work that takes long gives its
worker back, so that many groups with a little slow work each do not stop the rest either.
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
"""Work that takes longer holds no worker any more."""
IN_PROGRESS_PER_WORKER = 4
"""How much work may be in progress for each worker, slow work included: each holds memory."""
log = logging.getLogger(__name__)


class QueueObserver:
    """Receives the queue's events; this base class ignores them."""

    def on_added(self, depth: int) -> None:
        """Handle a key that became due; `depth` keys are now waiting."""

    def on_started(self, waited: float, depth: int) -> None:
        """Handle the start of work on a key that was due for `waited` seconds."""

    def on_finished(self, seconds: float, result: str) -> None:
        """Handle the end of work on a key; the result is success, trouble or error."""

    def on_retry(self) -> None:
        """Handle a key that will be tried again."""


class WorkQueue(Generic[Key]):
    """Runs `work(key)`, which returns the seconds until the key is due again, None for never."""

    def __init__(
        self,
        work: Callable[[Key], Awaitable[float | None]],
        *,
        workers: int,
        group: Callable[[Key], Hashable],
        observer: QueueObserver | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._work, self._workers, self._clock = work, workers, clock
        self._group = group
        self._observer = observer or QueueObserver()
        self._due: dict[Hashable, dict[Key, float]] = {}
        """Group → due key → when it became due; both in the order in which they are served."""
        self._depth = 0
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
        """Make the key due later, unless it is due already or will be due sooner."""
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if self._is_due(key) or (timer is not None and timer.when() <= loop.time() + seconds):
            return
        self._cancel_timer(key)
        self._timers[key] = loop.call_later(seconds, self.add, key)

    async def run(self) -> None:
        """Process keys until cancelled, which also cancels the work in progress."""
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    await self._wake.wait()
                    self._wake.clear()
                    while (key := self._next()) is not None:
                        waited = self._begin(key)
                        self._observer.on_started(waited, self._depth)
                        group.create_task(self._run_one(key))
        finally:
            for key in list(self._timers):
                self._cancel_timer(key)

    def _is_due(self, key: Key) -> bool:
        return key in self._due.get(self._group(key), {})

    def _next(self) -> Key | None:
        """Return the key to work on next, None if none may begin."""
        quick_since = self._clock() - SLOW_SECONDS
        quick = [key for key, began in self._running.items() if began > quick_since]
        held = Counter(map(self._group, self._running))
        held_quick = Counter(map(self._group, quick))
        free = self._workers * IN_PROGRESS_PER_WORKER - len(self._running)
        free_workers = self._workers - len(quick)
        for group, keys in self._due.items():
            if held[group] < free and held_quick[group] < free_workers:
                for key in keys:
                    if key not in self._running:
                        return key
        return None

    def _begin(self, key: Key) -> float:
        """Move the key from due to running and its group to the end; return how long it waited."""
        group, now = self._group(key), self._clock()
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
            log.warning("%s: %s; next try in %.1f s", key, error, delay)
        except Exception:
            delay = self._retry_delay(key, retryable=True)
            log.exception("%s: a mistake in the operator; next try in %.1f s", key, delay)
        finally:
            self._observer.on_finished(self._clock() - self._running.pop(key), result)
            self._wake.set()
        if delay is not None:
            self.add_after(key, delay)

    def _retry_delay(self, key: Key, retryable: bool) -> float:
        """Double the delay with every failure in a row, ±20 % so that jobs spread out."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        self._observer.on_retry()
        grown = FIRST_DELAY_SECONDS * 2.0 ** min(failures - 1, 20)
        delay = min(MAX_DELAY_SECONDS, grown) if retryable else MAX_DELAY_SECONDS
        return delay * random.uniform(0.8, 1.2)

    def _cancel_timer(self, key: Key) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
