"""Exchange JSON with one HTTP service: retries, limits, circuit breaker; knows no protocol.

Every failure is a CallFailed with its cause. Header values must never appear in a message.
"""

import asyncio
import json
import math
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import aiohttp
from aiohttp.http_exceptions import ContentEncodingError, HttpProcessingError

from raggrpo_api.addresses import shown_url
from raggrpo_trainer.sample_failures import CallFailed, FailureCause

from .answers import TooLarge, decoded
from .pool import Answer, HttpPool, proxy_of

EXCERPT_CHARACTERS = 200
LATENCIES_KEPT = 4096
SECRET_LENGTH = 8
TOO_MANY_REQUESTS = 429

# A separate generator: retries must not advance the random numbers used in training.
_jitter = random.Random()


@dataclass(frozen=True)
class RetryPolicy:
    """How often and after what delay a call is retried; the delay doubles, with ± 50 % jitter."""

    retries: int = 2
    first_delay_seconds: float = 0.5

    def delay_seconds(self, retry: int) -> float:
        """Return the delay before retry number `retry`, counted from 0."""
        return self.first_delay_seconds * 2.0**retry * _jitter.uniform(0.5, 1.5)


ONE_TRY = RetryPolicy(retries=0)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    """One call: a JSON body (None: none), and a URL in place of the service's own if not empty."""

    body: Any
    method: str = "POST"
    url: str = ""


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
    """One HTTP service that answers requests with JSON, or with a stream of JSON events."""

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
        self._url, self._proxy = url, proxy_of(url)
        # A Secret created from a file often ends in a newline, which headers must not contain.
        self._headers = {name: value.strip() for name, value in headers.items()}
        self._timeout_seconds = timeout_seconds
        self._slots = asyncio.Semaphore(max_concurrency)
        self._retry = retry
        self._breaker = breaker
        self._last_failure = ""  # the reason given while the circuit is open

    @property
    def shown_url(self) -> str:
        """The URL for messages, without its query string, where some services expect their key."""
        return shown_url(self._url)

    async def post(
        self,
        request: Request,
        parse: Callable[[Any], T],
        retry: RetryPolicy | None = None,
    ) -> T:
        """Return the parsed answer; retry transient failures. Raises CallFailed."""
        if not self._breaker.admits():
            self.statistics.failures[FailureCause.CIRCUIT_OPEN] += 1
            raise CallFailed(FailureCause.CIRCUIT_OPEN, f"not asked; before: {self._last_failure}")
        try:
            answer = parse(await self._post_again(request, retry or self._retry))
        except CallFailed as failure:
            self.statistics.failures[failure.cause] += 1
            self._last_failure = str(failure)
            if failure.transient:
                self._breaker.failed()
            else:
                self._breaker.succeeded()  # the service is up; it rejected this one request
            raise
        self._breaker.succeeded()
        return answer

    async def post_once(self, request: Request, timeout_seconds: float) -> Any:
        """Post without retries, bypassing the circuit breaker. Raises CallFailed."""
        async with self._slots:
            started = time.monotonic()
            response = await self._send(request, timeout_seconds)
            self.statistics.record(time.monotonic() - started)
        if not 200 <= response.status < 300:
            raise CallFailed(
                FailureCause.HTTP_STATUS,
                f"{response.status} {self._excerpt(response)}",
                transient=response.status >= 500 or response.status == TOO_MANY_REQUESTS,
            )
        try:
            return decoded(response.body, response.content_type)
        except json.JSONDecodeError as error:
            raise CallFailed(FailureCause.BAD_JSON, self._excerpt(response)) from error
        except ValueError as error:
            raise CallFailed(FailureCause.BAD_JSON, self._without_secrets(str(error))) from error

    async def _post_again(self, request: Request, retry: RetryPolicy) -> Any:
        for number in range(retry.retries):
            try:
                return await self.post_once(request, self._timeout_seconds)
            except CallFailed as failure:
                if not failure.transient:
                    raise
            await asyncio.sleep(retry.delay_seconds(number))
        return await self.post_once(request, self._timeout_seconds)

    async def _send(self, request: Request, timeout_seconds: float) -> Answer:
        url, headers, content = request.url or self._url, self._headers, None
        if request.body is not None:
            content = json.dumps(request.body)  # escapes lone surrogates, which are no valid UTF-8
            headers = {"content-type": "application/json"} | headers
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._http.send(request.method, url, content, headers, self._proxy)
        except TimeoutError as error:
            raise CallFailed(
                FailureCause.TIMEOUT, f"no answer in {timeout_seconds:g} s", transient=True
            ) from error
        except TooLarge as error:
            raise CallFailed(FailureCause.BAD_JSON, str(error)) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            cause, why = what_failed(error)
            transient = cause not in (FailureCause.TLS_FAILURE, FailureCause.BAD_JSON)
            detail = self._without_secrets(why)
            raise CallFailed(cause, detail, transient=transient) from None  # it contains the URL

    def _excerpt(self, answer: Answer) -> str:
        return repr(self._without_secrets(answer.text))

    def _without_secrets(self, text: str) -> str:
        """Return the start of `text` with any header values in it masked."""
        for secret in _secrets_in(self._headers.values()):
            text = text.replace(secret, "***")
        return text[:EXCERPT_CHARACTERS]


def what_failed(error: Exception) -> tuple[FailureCause, str]:
    """Return the cause and one line of detail, without the URL: its query may hold a key."""
    cause, why = FailureCause.CONNECTION_LOST, str(error)
    match error:
        case aiohttp.ClientConnectorDNSError(os_error=fault):
            cause, why = FailureCause.DNS_FAILURE, str(fault)
        case (  # a connection reset before the first request failed during the handshake
            aiohttp.ClientSSLError(os_error=fault)
            | aiohttp.ClientConnectorError(os_error=ConnectionResetError() as fault)
        ):
            cause, why = FailureCause.TLS_FAILURE, str(fault)
        case aiohttp.ClientConnectorError(os_error=fault):
            cause, why = FailureCause.CONNECTION_REFUSED, str(fault)
        case aiohttp.ClientOSError(__cause__=OSError() as fault):
            why = str(fault)
        case aiohttp.ClientError(__cause__=ContentEncodingError(message=why)):
            cause = FailureCause.BAD_JSON
        case aiohttp.ClientError(__cause__=HttpProcessingError(message=why)):
            pass
        case aiohttp.ClientResponseError(message=why):
            pass
        case aiohttp.ServerDisconnectedError():
            why = "Server disconnected without sending a response."
        case aiohttp.InvalidURL():
            why = "the URL is not valid"
    return cause, " ".join(why.split()) or type(error).__name__


def _secrets_in(values: Iterable[str]) -> list[str]:
    # In "Bearer abc…" the scheme is not secret, and masking short words would garble messages.
    return [word for value in values for word in value.split() if len(word) >= SECRET_LENGTH]


def _nearest_rank(ordered: list[float], percent: int) -> float:
    return ordered[math.ceil(len(ordered) * percent / 100) - 1] if ordered else math.nan
