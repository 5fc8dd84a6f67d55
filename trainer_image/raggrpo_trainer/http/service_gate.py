"""Finds out whether a service is down, and holds its calls back until it answers again.

A call that fails is asked after: a request that the service has answered before is sent again. If
that fails too, or most calls have failed lately, the service is down, and nobody's call counts as
failed. If it is answered, the service is up and the failure is that call's own. The circuit
breaker of Nygard, Release It! (2nd ed. 2018, ch. 5), but with calls that wait instead of failing.
"""

import asyncio
import logging
import math
import random
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol

from .background_tasks import BackgroundTasks

log = logging.getLogger(__name__)

MIN_PROBE_INTERVAL_SECONDS = 0.5
MAX_PROBE_INTERVAL_SECONDS = 5.0
"""Between two probes: how late the end of an outage may be noticed."""
HANG_SECONDS = 20.0
HANG_FACTOR = 3.0
"""A service is quiet after max(20 s, factor × its slowest recent answer) without any answer."""
RECENT_SECONDS = 60.0
RECENT_CALLS = 64
MIN_CALLS = 10
"""Calls that say something about a service; of fewer, each may be special."""
DOWN_FAILURE_RATIO = 0.75

# A separate generator: probes must not advance the random numbers used in training.
_jitter = random.Random()


class OutageListener(Protocol):
    """Receives the start and the end of each service's outages."""

    def mark_down(self, name: str, cause: str) -> None:
        """Record that a service is down."""

    def mark_up(self, name: str) -> None:
        """Record that a service responds again."""


class ServiceGate:
    """One service's gate: open while it answers."""

    def __init__(
        self,
        name: str,
        probe: Callable[[], Awaitable[bool]],
        outages: OutageListener,
        tasks: BackgroundTasks,
    ) -> None:
        """`probe` sends one request and returns whether the service answered, whatever it said."""
        self._name, self._probe, self._outages, self._tasks = name, probe, outages, tasks
        self._is_up = asyncio.Event()
        self._is_up.set()
        self._checking: asyncio.Task[bool] | None = None
        self._last_answer = -math.inf
        self._seconds: deque[float] = deque(maxlen=RECENT_CALLS)
        self._recent: deque[tuple[float, bool]] = deque(maxlen=RECENT_CALLS)

    async def wait_until_up(self) -> None:
        """Wait until the service is not known to be down."""
        while not self._is_up.is_set():
            await self._is_up.wait()

    def record_latency(self, seconds: float) -> None:
        """Note how long an answer took: what is usual for one service is a hang of another."""
        self._seconds.append(seconds)

    def record_response(self) -> None:
        """Note that a call was answered, whatever the answer said."""
        self._last_answer = _now()
        self._recent.append((self._last_answer, True))
        self._is_up.set()

    async def wait_if_down(self, cause: str, *, is_first: bool = True) -> bool:
        """Return whether a call failed because the service was down, once it is up again.

        `is_first`: the call has not failed by itself yet; only that says something about the
        service.
        """
        if is_first:
            self._recent.append((_now(), False))
        return await asyncio.shield(self._check(cause, is_certain=self._mostly_fails()))

    def start_hang_timer(self) -> asyncio.TimerHandle:
        """Return a timer for a call that begins now; if it is not cancelled, the call is quiet."""
        limit = max(HANG_SECONDS, HANG_FACTOR * max(self._seconds, default=0.0))
        began = _now()

        def quiet() -> None:
            if self._last_answer < began:
                self._check(f"Timeout: no answer for {limit:.0f} s", is_certain=True)

        return asyncio.get_running_loop().call_later(limit, quiet)

    def _check(self, cause: str, *, is_certain: bool) -> "asyncio.Task[bool]":
        """Return the check that is under way, or a new one; its result is whether it was down."""
        if self._checking is None or self._checking.done():
            self._checking = self._tasks.start(self._until_answered(cause, is_certain=is_certain))
        return self._checking

    async def _until_answered(self, cause: str, *, is_certain: bool) -> bool:
        if not is_certain and await self._probe():
            return False
        began = _now()
        log.warning("%s is down: %s; its calls wait", self._name, cause)
        self._is_up.clear()
        self._outages.mark_down(self._name, cause)
        try:
            await self._until_up()
        finally:
            self._is_up.set()
            self._recent.clear()
            self._outages.mark_up(self._name)
        log.info("%s answers again after %.0f s", self._name, _now() - began)
        return True

    async def _until_up(self) -> None:
        """Wait for an answer to a probe, or to a call that was in flight."""
        probing = self._tasks.start(self._probe_until_answered())
        answered = self._tasks.start(self._is_up.wait())
        try:
            await asyncio.wait({probing, answered}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            probing.cancel()
            answered.cancel()

    async def _probe_until_answered(self) -> None:
        pause = MIN_PROBE_INTERVAL_SECONDS
        while True:
            await asyncio.sleep(pause * _jitter.uniform(0.8, 1.2))
            if await self._probe():
                return
            pause = min(2 * pause, MAX_PROBE_INTERVAL_SECONDS)

    def _mostly_fails(self) -> bool:
        since = _now() - RECENT_SECONDS
        outcomes = [answered for when, answered in self._recent if when >= since]
        failed = outcomes.count(False)
        return len(outcomes) >= MIN_CALLS and failed >= DOWN_FAILURE_RATIO * len(outcomes)


def _now() -> float:
    return asyncio.get_running_loop().time()
