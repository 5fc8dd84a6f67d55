"""Detect that a service is down, and let calls wait until the service responds again.

A failed call triggers a probe, which repeats an earlier successful request. If the probe fails too,
or most of the recent calls have failed, the service is down and its calls do not count as failed.
If the probe succeeds, the service is up and the call itself is at fault. This is the circuit
breaker of Nygard, Release It! (2nd ed. 2018, ch. 5), except that calls wait instead of failing.
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
"""Bounds of the probe interval; the upper bound limits the delay of detecting a recovery."""
HANG_SECONDS = 20.0
HANG_FACTOR = 3.0
"""A service hangs if it sends no response for HANG_SECONDS, or for HANG_FACTOR times its largest
recent latency if that is longer."""
RECENT_SECONDS = 60.0
RECENT_CALLS = 64
MIN_CALLS = 10
"""Minimum number of recent calls for which the failure ratio is evaluated."""
DOWN_FAILURE_RATIO = 0.75
"""Share of failed recent calls at which a service counts as down without a probe."""

# A separate generator: probes must not advance the process's global random state.
_jitter = random.Random()


class OutageListener(Protocol):
    """Receives the start and the end of each service's outages."""

    def mark_down(self, name: str, cause: str) -> None:
        """Record that a service is down."""

    def mark_up(self, name: str) -> None:
        """Record that a service responds again."""


class ServiceGate:
    """Gate for the calls to one service; it is open while the service responds."""

    def __init__(
        self,
        name: str,
        probe: Callable[[], Awaitable[bool]],
        outages: OutageListener,
        tasks: BackgroundTasks,
    ) -> None:
        """`probe` sends one request and returns whether the service responds at all."""
        self._name, self._probe = name, probe
        self._outages, self._tasks = outages, tasks
        self._is_up = asyncio.Event()
        self._is_up.set()
        self._check: asyncio.Task[bool] | None = None
        self._last_response = -math.inf
        self._latencies: deque[float] = deque(maxlen=RECENT_CALLS)
        self._outcomes: deque[tuple[float, bool]] = deque(maxlen=RECENT_CALLS)

    async def wait_until_up(self) -> None:
        """Wait while the service is known to be down."""
        while not self._is_up.is_set():
            await self._is_up.wait()

    def record_latency(self, seconds: float) -> None:
        """Record the latency of a response; the hang timeout depends on it."""
        self._latencies.append(seconds)

    def record_response(self) -> None:
        """Record that the service responded to a call, even with an error."""
        self._last_response = _now()
        self._outcomes.append((self._last_response, True))
        self._is_up.set()

    async def wait_if_down(self, cause: str, *, is_first: bool = True) -> bool:
        """Return False if the service is up; otherwise wait until it is up again and return True.

        `cause` describes the failure of the call. Only the first failure of a call counts toward
        the failure ratio of the service.
        """
        if is_first:
            self._outcomes.append((_now(), False))
        return await asyncio.shield(self._start_check(cause, is_certain=self._mostly_fails()))

    def start_hang_timer(self) -> asyncio.TimerHandle:
        """Return a timer for a call that starts now, to be canceled when the call returns."""
        limit = max(HANG_SECONDS, HANG_FACTOR * max(self._latencies, default=0.0))
        started = _now()

        def check() -> None:
            if self._last_response < started:
                self._start_check(f"Timeout: no response for {limit:.0f} s", is_certain=True)

        return asyncio.get_running_loop().call_later(limit, check)

    def _start_check(self, cause: str, *, is_certain: bool) -> "asyncio.Task[bool]":
        """Return the running check, or start one; its result is True if the service was down."""
        if self._check is None or self._check.done():
            self._check = self._tasks.start(self._run_check(cause, is_certain=is_certain))
        return self._check

    async def _run_check(self, cause: str, *, is_certain: bool) -> bool:
        if not is_certain and await self._probe():
            return False
        started = _now()
        log.warning("%s is down: %s; calls to it wait until it responds", self._name, cause)
        self._is_up.clear()
        self._outages.mark_down(self._name, cause)
        try:
            await self._wait_for_response()
        finally:
            self._is_up.set()
            self._outcomes.clear()
            self._outages.mark_up(self._name)
        log.info("%s is up again after %.0f s", self._name, _now() - started)
        return True

    async def _wait_for_response(self) -> None:
        """Wait for a response to a probe or to a call in flight."""
        probes = self._tasks.start(self._probe_until_up())
        response = self._tasks.start(self._is_up.wait())
        try:
            await asyncio.wait({probes, response}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            probes.cancel()
            response.cancel()

    async def _probe_until_up(self) -> None:
        interval = MIN_PROBE_INTERVAL_SECONDS
        while True:
            await asyncio.sleep(interval * _jitter.uniform(0.8, 1.2))
            if await self._probe():
                return
            interval = min(2 * interval, MAX_PROBE_INTERVAL_SECONDS)

    def _mostly_fails(self) -> bool:
        since = _now() - RECENT_SECONDS
        outcomes = [is_answered for when, is_answered in self._outcomes if when >= since]
        failed = outcomes.count(False)
        return len(outcomes) >= MIN_CALLS and failed >= DOWN_FAILURE_RATIO * len(outcomes)


def _now() -> float:
    return asyncio.get_running_loop().time()
