"""Post JSON to one HTTP service with retries, limits and a circuit breaker; knows no protocol.

Every failure is a CallFailed with its cause. Headers and their values must not reach any message.
"""

import asyncio
import json
import logging
import math
import random
import socket
import ssl
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

from raggrpo_trainer.sample_failures import CallFailed, FailureCause

from .pool import HttpPool

logging.getLogger("httpx").setLevel(logging.WARNING)  # at INFO it logs every request

EXCERPT_CHARACTERS = 200
LATENCIES_KEPT = 4096
SECRET_LENGTH = 8
TOO_MANY_REQUESTS = 429

# A separate generator: retries must not advance the random numbers used in training.
_jitter = random.Random()


@dataclass(frozen=True)
class RetryPolicy:
    """How often and after what delay a call is retried; the delay doubles, ± 50 % jitter."""

    retries: int = 2
    first_delay_seconds: float = 0.5

    def delay_seconds(self, retry: int) -> float:
        """Return the delay before retry number `retry`, counted from 0."""
        return self.first_delay_seconds * 2.0**retry * _jitter.uniform(0.5, 1.5)


ONE_TRY = RetryPolicy(retries=0)

JsonObject = dict[str, Any]
T = TypeVar("T")


@dataclass
class CircuitBreaker:
    """Stops calling a service after `threshold` consecutive failures.

    After that, one call per `pause_seconds` is let through as a probe until one succeeds.
    """

    threshold: int = 10
    pause_seconds: float = 5.0
    clock: Callable[[], float] = time.monotonic
    _failures: int = 0
    _next_probe: float = 0.0

    def admits(self) -> bool:
        """Return whether a call may be made now; admitting a probe starts the next pause."""
        if self._failures < self.threshold:
            return True
        now = self.clock()
        if now < self._next_probe:
            return False
        self._next_probe = now + self.pause_seconds
        return True

    def succeeded(self) -> None:
        """Close the circuit: the service has answered."""
        self._failures = 0

    def failed(self) -> None:
        """Count a failure; at or above the threshold, each one restarts the pause."""
        self._failures += 1
        if self._failures >= self.threshold:
            self._next_probe = self.clock() + self.pause_seconds


@dataclass(frozen=True)
class CallSummary:
    """Calls to one service: number answered, latency percentiles in seconds, failures by cause."""

    answered: int
    p50: float
    p95: float
    p99: float
    failures: Mapping[FailureCause, int]


@dataclass
class CallStatistics:
    """Collects failures and the latencies of the last 4,096 answered requests of one service."""

    answered: int = 0
    failures: Counter[FailureCause] = field(default_factory=Counter)
    _seconds: deque[float] = field(default_factory=lambda: deque(maxlen=LATENCIES_KEPT))

    def record(self, seconds: float) -> None:
        """Count an answered request."""
        self.answered += 1
        self._seconds.append(seconds)

    def summary(self) -> CallSummary:
        """Return nearest-rank percentiles; NaN until something has been answered."""
        ordered = sorted(self._seconds)
        p50, p95, p99 = (_nearest_rank(ordered, percent) for percent in (50, 95, 99))
        return CallSummary(self.answered, p50, p95, p99, dict(self.failures))


class JsonService:
    """One HTTP service that answers a posted JSON object with a JSON object."""

    def __init__(
        self,
        http: HttpPool,
        url: str,
        *,
        headers: Mapping[str, str],
        timeout_seconds: float,
        max_concurrency: int,
        retry: RetryPolicy,
        breaker: CircuitBreaker,
    ) -> None:
        self.statistics = CallStatistics()
        self._http = http
        self._url = url
        # A Secret created from a file often ends in a newline, which headers must not contain.
        self._headers = {name: value.strip() for name, value in headers.items()}
        self._timeout_seconds = timeout_seconds
        self._slots = asyncio.Semaphore(max_concurrency)
        self._retry = retry
        self._breaker = breaker
        self._last_failure = ""  # lets an open circuit say why it is open

    @property
    def shown_url(self) -> str:
        """The URL for messages, without its query string, where some services expect their key."""
        return self._url.partition("?")[0]

    async def post(
        self,
        body: Mapping[str, Any],
        parse: Callable[[JsonObject], T],
        retry: RetryPolicy | None = None,
    ) -> T:
        """Return the parsed answer; retry transient failures. Raises CallFailed."""
        if not self._breaker.admits():
            self.statistics.failures[FailureCause.CIRCUIT_OPEN] += 1
            raise CallFailed(FailureCause.CIRCUIT_OPEN, f"not asked; before: {self._last_failure}")
        try:
            answer = parse(await self._post_again(body, retry or self._retry))
        except CallFailed as failure:
            self.statistics.failures[failure.cause] += 1
            self._last_failure = str(failure)
            if failure.transient:
                self._breaker.failed()
            else:
                self._breaker.succeeded()  # it rejected this request, but it is up
            raise
        self._breaker.succeeded()
        return answer

    async def post_once(self, body: Mapping[str, Any], timeout_seconds: float) -> JsonObject:
        """Post without retries, bypassing the circuit breaker. Raises CallFailed."""
        async with self._slots:
            started = time.monotonic()
            response = await self._send(body, timeout_seconds)
            self.statistics.record(time.monotonic() - started)
        if not response.is_success:
            raise CallFailed(
                FailureCause.HTTP_STATUS,
                f"{response.status_code} {self._excerpt(response)}",
                transient=response.is_server_error or response.status_code == TOO_MANY_REQUESTS,
            )
        try:
            answer = response.json()
        except ValueError as error:
            raise CallFailed(FailureCause.BAD_JSON, self._excerpt(response)) from error
        if not isinstance(answer, dict):
            raise CallFailed(FailureCause.BAD_JSON, f"no JSON object: {self._excerpt(response)}")
        return answer

    async def _post_again(self, body: Mapping[str, Any], retry: RetryPolicy) -> JsonObject:
        for number in range(retry.retries):
            try:
                return await self.post_once(body, self._timeout_seconds)
            except CallFailed as failure:
                if not failure.transient:
                    raise
            await asyncio.sleep(retry.delay_seconds(number))
        return await self.post_once(body, self._timeout_seconds)

    async def _send(self, body: Mapping[str, Any], timeout_seconds: float) -> httpx.Response:
        content = json.dumps(body)  # escapes lone surrogates, which httpx's own `json=` does not
        headers = {"content-type": "application/json"} | self._headers
        try:
            # httpx's timeout applies to each phase of the call, not to the call as a whole.
            async with asyncio.timeout(timeout_seconds):
                return await self._http.post(self._url, content, headers)
        except TimeoutError as error:
            raise CallFailed(
                FailureCause.TIMEOUT, f"no answer in {timeout_seconds:g} s", transient=True
            ) from error
        except httpx.RequestError as error:
            cause = classify(error)
            transient = cause not in (FailureCause.TLS_FAILURE, FailureCause.BAD_JSON)
            raise CallFailed(
                cause,
                self._without_secrets(str(error) or type(error).__name__),
                transient=transient,
            ) from None  # its text may contain a header

    def _excerpt(self, response: httpx.Response) -> str:
        return repr(self._without_secrets(response.text))

    def _without_secrets(self, text: str) -> str:
        """Return the start of `text` with any header values in it masked."""
        for secret in _secrets_in(self._headers.values()):
            text = text.replace(secret, "***")
        return text[:EXCERPT_CHARACTERS]


def classify(error: httpx.RequestError) -> FailureCause:
    """Return what went wrong below HTTP, from the chain of errors that httpx wraps."""
    match error:
        case httpx.DecodingError():
            return FailureCause.BAD_JSON
        case httpx.ConnectError():
            pass
        case _:
            return FailureCause.CONNECTION_LOST
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, socket.gaierror):
            return FailureCause.DNS_FAILURE
        if isinstance(cause, ssl.SSLError):
            return FailureCause.TLS_FAILURE
        cause = cause.__cause__ or cause.__context__
    return FailureCause.CONNECTION_REFUSED


def _secrets_in(values: Iterable[str]) -> list[str]:
    # In "Bearer abc…" the scheme is not secret, and masking short words would garble messages.
    return [word for value in values for word in value.split() if len(word) >= SECRET_LENGTH]


def _nearest_rank(ordered: list[float], percent: int) -> float:
    return ordered[math.ceil(len(ordered) * percent / 100) - 1] if ordered else math.nan
