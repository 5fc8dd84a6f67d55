"""Exchange JSON with one HTTP service: retries, limits, outages. Must not depend on its protocol.

Every failure raises CallFailed with its cause. Header values must never appear in a message.
"""

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import aiohttp

from raggrpo_api.secrets.redaction import display_url, url_secrets
from raggrpo_trainer.call_failures import CallFailed, FailureCause

from .background_tasks import BackgroundTasks
from .call_statistics import CallStatistics
from .diagnosis import (
    cause_and_detail,
    is_html,
    is_transient_status,
    redirect_target,
    retry_after_seconds,
)
from .pool import HttpPool, HttpResponse, proxy_for
from .responses import ResponseTooLarge, decode_response
from .service_gate import OutageListener, ServiceGate

EXCERPT_CHARACTERS = 200
DETAIL_CHARACTERS = 400
"""Maximum length of an error detail, which may consist of an excerpt and a remedy."""
MIN_SECRET_CHARACTERS = 8
OUTAGES_BEFORE_SERIAL = 2
"""Number of outages during a call after which its retries are serial: one call at a time."""
MAX_SERIAL_OUTAGES = 5
"""Number of outages during a call's serial retries after which the call fails as the cause."""

# A separate generator: retries must not advance the process's global random state.
_jitter = random.Random()


@dataclass(frozen=True)
class RetryPolicy:
    """Number of retries and the first delay; each retry doubles the delay, with ± 50 % jitter."""

    retries: int = 2
    first_delay_seconds: float = 0.5

    def delay_seconds(self, retry: int) -> float:
        """Return the delay before retry number `retry`, counting from 0."""
        return self.first_delay_seconds * 2.0**retry * _jitter.uniform(0.5, 1.5)


ONE_TRY = RetryPolicy(retries=0)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    """One call: a JSON body or None, the method, and the URL if it differs from the service's."""

    body: Any
    method: str = "POST"
    url: str = ""


@dataclass(frozen=True, slots=True)
class GateOptions:
    """Options of a JsonService whose calls wait during outages."""

    name: str
    """Name of the service in messages, such as `endpoint kb`."""
    outages: OutageListener
    tasks: BackgroundTasks

    @classmethod
    def of(cls, name: str, outages: OutageListener | None, tasks: BackgroundTasks) -> Self | None:
        """Return the options, or None if there is no outage listener."""
        return None if outages is None else cls(name, outages, tasks)


class JsonService:
    """One HTTP service that responds with JSON, or with a stream of JSON events."""

    def __init__(
        self,
        http: HttpPool,
        url: str,
        *,
        headers: Mapping[str, str],
        timeout_seconds: float,
        max_concurrency: int,
        retry: RetryPolicy,
        gate: GateOptions | None = None,
    ) -> None:
        """With `gate`, calls wait while the service is down; otherwise they fail after retries."""
        self.statistics = CallStatistics()
        self._http = http
        self._url = url
        self._proxy = proxy_for(url)
        # A Secret created from a file often ends with a newline, which headers must not contain.
        self._headers = {name: value.strip() for name, value in headers.items()}
        self._timeout_seconds = timeout_seconds
        self._slots = asyncio.Semaphore(max_concurrency)
        self._serial_lock = asyncio.Lock()
        self._retry = retry
        self._gate: ServiceGate | None = None
        if gate is not None:
            self._gate = ServiceGate(gate.name, self._probe, gate.outages, gate.tasks)
        self._first_answered: Request | None = None
        self._last_sent = Request({})
        self._not_before = 0.0  # event loop time, from Retry-After

    @property
    def display_url(self) -> str:
        """The URL for messages, without what may be secret."""
        return display_url(self._url)

    async def post(
        self,
        request: Request,
        parse: Callable[[Any], T],
        retry: RetryPolicy | None = None,
    ) -> T:
        """Return the parsed response; retry transient failures. Raises CallFailed.

        Calls that fail during an outage are retried when the service is up again. Calls with
        several outages are retried one at a time, to identify the call that causes the outages.
        """
        retry = retry or self._retry
        failures = outages = serial_outages = 0
        while True:
            is_serial = outages >= OUTAGES_BEFORE_SERIAL
            async with self._serial_lock if is_serial else nullcontext():
                try:
                    return self._parse(*await self._post(request), parse)
                except CallFailed as failure:
                    was_down = serial_outages < MAX_SERIAL_OUTAGES and await self._wait_if_down(
                        failure, is_first=failures == 0
                    )
                    if not was_down and (not failure.transient or failures == retry.retries):
                        self.statistics.failures[failure.cause] += 1
                        raise
            self.statistics.retries += 1
            if was_down:
                outages += 1
                serial_outages += is_serial
            else:
                await asyncio.sleep(max(retry.delay_seconds(failures), self._requested_delay()))
                failures += 1

    async def post_once(
        self, request: Request, parse: Callable[[Any], T], timeout_seconds: float
    ) -> T:
        """Return the parsed response without retries, even if the service is known to be down.

        Raises CallFailed.
        """
        return self._parse(*await self._exchange(request, timeout_seconds), parse)

    async def _exchange(self, request: Request, timeout_seconds: float) -> tuple[Any, float]:
        """Return the decoded response, and its latency in seconds."""
        async with self._slots:
            started = time.monotonic()
            response = await self._send(request, timeout_seconds)
            seconds = time.monotonic() - started
        if self._gate is not None:
            self._gate.record_latency(seconds)
        value = self._decode(response, request)
        self._first_answered = self._first_answered or request
        return value, seconds

    def _parse(self, value: Any, seconds: float, parse: Callable[[Any], T]) -> T:
        """Return `parse(value)` and count the call. Raises CallFailed with header values masked."""
        try:
            result = parse(value)
        except CallFailed as failure:
            detail = self._without_secrets(failure.detail, DETAIL_CHARACTERS)
            raise CallFailed(failure.cause, detail, transient=failure.transient) from None
        except Exception as error:
            # One response of a type that no parser expects must not end the run.
            problem = f"the response cannot be parsed ({type(error).__name__}: {error})"
            detail = self._without_secrets(problem, DETAIL_CHARACTERS)
            raise CallFailed(FailureCause.BAD_JSON, detail) from error
        self.statistics.record(seconds)
        return result

    async def _post(self, request: Request) -> tuple[Any, float]:
        """Wait while the service is known to be down, then post once and report to the gate."""
        if self._gate is None:
            return await self._exchange(request, self._timeout_seconds)
        await self._gate.wait_until_up()
        self._last_sent = request
        hang_timer = self._gate.start_hang_timer()
        try:
            answer = await self._exchange(request, self._timeout_seconds)
        except CallFailed as failure:
            if not failure.transient:  # the service is up and rejects this request
                self._gate.record_response()
            raise
        finally:
            hang_timer.cancel()
        self._gate.record_response()
        return answer

    async def _wait_if_down(self, failure: CallFailed, *, is_first: bool) -> bool:
        """Return whether an outage caused the failure; if so, first wait until the outage ends."""
        if self._gate is None or not failure.transient:
            return False
        return await self._gate.wait_if_down(str(failure), is_first=is_first)

    async def _probe(self) -> bool:
        """Send one request outside the concurrency limit; return whether the service responds."""
        try:
            await asyncio.sleep(self._requested_delay())
            request = self._first_answered or self._last_sent
            self._decode(await self._send(request, self._timeout_seconds), request)
        except CallFailed as failure:
            return not failure.transient
        return True

    def _requested_delay(self) -> float:
        """Return the remaining seconds of Retry-After, at most the timeout of a call."""
        return max(0.0, self._not_before - asyncio.get_running_loop().time())

    def _decode(self, response: HttpResponse, request: Request) -> Any:
        delay = min(retry_after_seconds(response), self._timeout_seconds)
        self._not_before = max(self._not_before, asyncio.get_running_loop().time() + delay)
        if not 200 <= response.status < 300:
            detail = self._excerpt(response)
            target = self._without_secrets(redirect_target(response, request.url or self._url))
            if target:
                detail = f"the service has moved to {target}; set url to this address"
            raise CallFailed(
                FailureCause.HTTP_STATUS,
                f"{response.status}{':' if target else ''} {detail}",
                transient=is_transient_status(response.status),
                status=response.status,
            )
        if not response.body.strip():
            raise CallFailed(FailureCause.BAD_JSON, f"{response.status}: empty response body")
        try:
            return decode_response(response.body, response.content_type)
        except json.JSONDecodeError as error:
            # HTML from a service that sent JSON before comes from its load balancer.
            transient = self._first_answered is not None and is_html(response)
            detail = self._excerpt(response)
            raise CallFailed(FailureCause.BAD_JSON, detail, transient=transient) from error
        except ValueError as error:
            raise CallFailed(FailureCause.BAD_JSON, self._without_secrets(str(error))) from error

    async def _send(self, request: Request, timeout_seconds: float) -> HttpResponse:
        url = request.url or self._url
        headers = self._headers
        content = None
        if request.body is not None:
            content = json.dumps(request.body)  # escapes lone surrogates, which are not valid UTF-8
            headers = {"content-type": "application/json"} | headers
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._http.send(request.method, url, content, headers, self._proxy)
        except TimeoutError as error:
            raise CallFailed(
                FailureCause.TIMEOUT, f"no response within {timeout_seconds:g} s", transient=True
            ) from error
        except ResponseTooLarge as error:
            raise CallFailed(FailureCause.BAD_JSON, str(error)) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            cause, detail = cause_and_detail(error)
            transient = cause not in (FailureCause.TLS_FAILURE, FailureCause.BAD_JSON)
            detail = self._without_secrets(detail, DETAIL_CHARACTERS)
            raise CallFailed(cause, detail, transient=transient) from None  # hides the URL

    def _excerpt(self, response: HttpResponse) -> str:
        return repr(self._without_secrets(response.text))

    def _without_secrets(self, text: str, limit: int = EXCERPT_CHARACTERS) -> str:
        """Return the first `limit` characters of `text`, with secrets in headers and URL masked."""
        for secret in _secrets_in([*self._headers.values(), *url_secrets(self._url)]):
            text = text.replace(secret, "***")
        return text[:limit]


def _secrets_in(values: Iterable[str]) -> list[str]:
    # In "Bearer abc…" the scheme is not secret, and masking short words would garble messages.
    return [
        word for value in values for word in value.split() if len(word) >= MIN_SECRET_CHARACTERS
    ]
