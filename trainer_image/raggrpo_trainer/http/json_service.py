"""Exchange JSON with one HTTP service: retries, limits, outages; knows no protocol.

Every failure is a CallFailed with its cause. Header values must never appear in a message.
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

from raggrpo_api.fields.addresses import shown_url
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
from .pool import Answer, HttpPool, proxy_for
from .responses import ResponseTooLarge, decode_response
from .service_gate import OutageListener, ServiceGate

EXCERPT_CHARACTERS = 200
DETAIL_CHARACTERS = 400
"""An excerpt with what is to be done about it."""
SECRET_LENGTH = 8
OUTAGES_BEFORE_SERIAL = 2
"""Outages in a row that a call meets before it is asked without others of its kind beside it."""
MAX_SERIAL_OUTAGES = 5
"""Outages while a call was asked alone before it is taken for their cause."""

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


@dataclass(frozen=True, slots=True)
class GateOptions:
    """What a service needs so that its calls wait while it is down."""

    name: str
    """As people are told: `endpoint kb`."""
    outages: OutageListener
    tasks: BackgroundTasks

    @classmethod
    def of(cls, name: str, outages: OutageListener | None, tasks: BackgroundTasks) -> Self | None:
        """Return this, or None where outages are nobody's concern."""
        return None if outages is None else cls(name, outages, tasks)


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
        gate: GateOptions | None = None,
    ) -> None:
        """With `gate`, calls wait for a service that is down; else they fail after retries."""
        self.statistics = CallStatistics()
        self._http = http
        self._url, self._proxy = url, proxy_for(url)
        # A Secret created from a file often ends in a newline, which headers must not contain.
        self._headers = {name: value.strip() for name, value in headers.items()}
        self._timeout_seconds = timeout_seconds
        self._slots = asyncio.Semaphore(max_concurrency)
        self._one_by_one = asyncio.Lock()
        self._retry = retry
        self._gate: ServiceGate | None = None
        if gate is not None:
            self._gate = ServiceGate(gate.name, self._answers, gate.outages, gate.tasks)
        self._answered: Request | None = None  # the first request that was answered
        self._asked = Request({})
        self._not_before = 0.0  # the loop's time, as answers with Retry-After ask

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
        """Return the parsed answer; retry transient failures. Raises CallFailed.

        What fails while the service is down is asked again as soon as it is up. Calls that meet
        one outage after the other go one by one, which shows whether one of them is the cause.
        """
        retry = retry or self._retry
        failed = outages = felled = 0
        while True:
            is_alone = outages >= OUTAGES_BEFORE_SERIAL
            async with self._one_by_one if is_alone else nullcontext():
                try:
                    return self.parse(await self._post(request), parse)
                except CallFailed as failure:
                    was_down = felled < MAX_SERIAL_OUTAGES and await self._was_down(failure, failed)
                    if not was_down and (not failure.transient or failed == retry.retries):
                        self.statistics.failures[failure.cause] += 1
                        raise
            if was_down:
                outages += 1
                felled += is_alone
            else:
                await asyncio.sleep(max(retry.delay_seconds(failed), self._pause_seconds()))
                failed += 1

    async def post_once(self, request: Request, timeout_seconds: float) -> Any:
        """Post without retries, even to a service that is known to be down. Raises CallFailed."""
        async with self._slots:
            started = time.monotonic()
            response = await self._send(request, timeout_seconds)
            seconds = time.monotonic() - started
        self.statistics.record(seconds)
        if self._gate is not None:
            self._gate.record_latency(seconds)
        answer = self._json_in(response, request)
        self._answered = self._answered or request
        return answer

    def parse(self, answer: Any, parse: Callable[[Any], T]) -> T:
        """Return a parsed answer. Raises CallFailed, without secrets in what it quotes."""
        try:
            return parse(answer)
        except CallFailed as failure:
            told = self._without_secrets(failure.detail, DETAIL_CHARACTERS)
            raise CallFailed(failure.cause, told, transient=failure.transient) from None

    async def _post(self, request: Request) -> Any:
        """Post once, as soon as the service is not known to be down, and tell the gate."""
        if self._gate is None:
            return await self.post_once(request, self._timeout_seconds)
        await self._gate.wait_until_up()
        self._asked = request
        watched = self._gate.start_hang_timer()
        try:
            answer = await self.post_once(request, self._timeout_seconds)
        except CallFailed as failure:
            if not failure.transient:  # it is up, and rejected this one request
                self._gate.record_response()
            raise
        finally:
            watched.cancel()
        self._gate.record_response()
        return answer

    async def _was_down(self, failure: CallFailed, failed: int) -> bool:
        """Return whether the service was down when a call failed that had failed so often."""
        if self._gate is None or not failure.transient:
            return False
        return await self._gate.wait_if_down(str(failure), is_first=failed == 0)

    async def _answers(self) -> bool:
        """Return whether the service answers a request, beside the calls in flight."""
        try:
            await asyncio.sleep(self._pause_seconds())
            asked = self._answered or self._asked
            self._json_in(await self._send(asked, self._timeout_seconds), asked)
        except CallFailed as failure:
            return not failure.transient
        return True

    def _pause_seconds(self) -> float:
        """Return how long the service has asked to be left alone, at most a call's limit."""
        return max(0.0, self._not_before - asyncio.get_running_loop().time())

    def _json_in(self, response: Answer, request: Request) -> Any:
        pause = min(retry_after_seconds(response), self._timeout_seconds)
        self._not_before = max(self._not_before, asyncio.get_running_loop().time() + pause)
        if not 200 <= response.status < 300:
            told = self._excerpt(response)
            if moved := self._without_secrets(redirect_target(response, request.url or self._url)):
                told = f"the service has moved to {moved}; write that as its url"
            raise CallFailed(
                FailureCause.HTTP_STATUS,
                f"{response.status}{':' if moved else ''} {told}",
                transient=is_transient_status(response.status),
            )
        if not response.body.strip():
            told = f"{response.status}: the answer has no content"
            raise CallFailed(FailureCause.BAD_JSON, told)
        try:
            return decode_response(response.body, response.content_type)
        except json.JSONDecodeError as error:
            # A service that has spoken JSON is behind a balancer which speaks for it meanwhile.
            transient = self._answered is not None and is_html(response)
            told = self._excerpt(response)
            raise CallFailed(FailureCause.BAD_JSON, told, transient=transient) from error
        except ValueError as error:
            raise CallFailed(FailureCause.BAD_JSON, self._without_secrets(str(error))) from error

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
        except ResponseTooLarge as error:
            raise CallFailed(FailureCause.BAD_JSON, str(error)) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            cause, why = cause_and_detail(error)
            transient = cause not in (FailureCause.TLS_FAILURE, FailureCause.BAD_JSON)
            detail = self._without_secrets(why)
            raise CallFailed(cause, detail, transient=transient) from None  # it contains the URL

    def _excerpt(self, answer: Answer) -> str:
        return repr(self._without_secrets(answer.text))

    def _without_secrets(self, text: str, limit: int = EXCERPT_CHARACTERS) -> str:
        """Return the start of `text` with any header values in it masked."""
        for secret in _secrets_in(self._headers.values()):
            text = text.replace(secret, "***")
        return text[:limit]


def _secrets_in(values: Iterable[str]) -> list[str]:
    # In "Bearer abc…" the scheme is not secret, and masking short words would garble messages.
    return [word for value in values for word in value.split() if len(word) >= SECRET_LENGTH]
