"""A call of a model that is not trained: the response of its endpoint, passed on as it arrives."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import aiohttp
from aiohttp import web

from raggrpo_api.fields.text import one_line
from raggrpo_api.secrets.redaction import display_url
from raggrpo_trainer.call_failures import CallFailed

from .forwarding import Forwarder
from .model_names import Endpoint
from .protocol import RequestRejected
from .trajectory import Trajectory, TrajectoryCause
from .working_time import Timer, within

EXCERPT_BYTES = 400
"""Length of the part of an error that failures show."""
MAX_START_BYTES = 4096
"""Bytes of an error in which the API key is replaced before the error is shortened."""
PASSED_HEADERS: Final = ("Content-Type", "Retry-After", "X-Request-Id")
PATH_PREFIX: Final = "/v1/"
TIMEOUT_REMEDY: Final = "check the endpoint, or increase rollout.agent.timeoutSeconds"
TIME_SHARE: Final = 0.9
"""Share of the remaining time of a run; the application has the rest to handle the error."""


@dataclass(frozen=True, slots=True)
class ForwardedCall:
    """A call of a model at an endpoint."""

    trajectory: Trajectory
    endpoint: Endpoint
    model: str
    timer: Timer
    """Time that remains for the run of the application."""

    async def deliver(
        self, request: web.Request, forwarder: Forwarder, body: bytes
    ) -> web.StreamResponse:
        """Pass the response on to the client. Raises RequestRejected if there is none in time.

        Time in which the endpoint is down does not count.
        """
        response = web.StreamResponse()
        seconds = self.timer.remaining * TIME_SHARE
        work = self._deliver(request, response, forwarder, body)
        try:
            await within(seconds, self.timer.clock, work)
        except TimeoutError as error:
            problem = f"no complete response within {seconds:.1f} s; {TIMEOUT_REMEDY}"
            if not response.prepared:
                raise self._rejected(problem, 504, TrajectoryCause.FORWARD_TIMEOUT) from error
            self._record(problem, TrajectoryCause.FORWARD_TIMEOUT)
            _abort(request)
        return response

    async def _deliver(
        self,
        request: web.Request,
        response: web.StreamResponse,
        forwarder: Forwarder,
        body: bytes,
    ) -> None:
        path = request.path.removeprefix(PATH_PREFIX)
        try:
            source = await forwarder.send(self.endpoint, path, body)
        except CallFailed as failure:
            raise self._rejected(str(failure)) from failure
        async with source:
            if source.status < 200:
                raise self._rejected(f"status {source.status} is not that of a whole response")
            if 300 <= source.status < 400:
                raise self._rejected(f"status {source.status} redirects; set url to its target")
            await self._pass_on(source, request, response)

    async def _pass_on(
        self, source: aiohttp.ClientResponse, request: web.Request, response: web.StreamResponse
    ) -> None:
        response.set_status(source.status)
        response.headers.update(_headers(source))
        await response.prepare(request)
        start = b""
        try:
            async for chunk in source.content.iter_any():
                start += chunk[: MAX_START_BYTES - len(start)]
                await response.write(chunk)
        except aiohttp.ClientError as error:
            self._record(f"the response broke off ({type(error).__name__})")
            _abort(request)
            return
        if source.status >= 400:
            self._record(f"status {source.status}: {self._excerpt(start)}")
        await response.write_eof()

    def _record(
        self, problem: str, cause: TrajectoryCause = TrajectoryCause.FORWARD_FAILED
    ) -> None:
        self.trajectory.record_failure(cause, self._described(problem))

    def _rejected(
        self,
        problem: str,
        status: int = 502,
        cause: TrajectoryCause = TrajectoryCause.FORWARD_FAILED,
    ) -> RequestRejected:
        code = "forward_timeout" if status == 504 else "forward_failed"
        return RequestRejected(status, self._described(problem), code=code, cause=cause)

    def _described(self, problem: str) -> str:
        """Return a problem with its place, without the API key, which services may repeat."""
        if key := self.endpoint.api_key.strip():
            problem = problem.replace(key, "***")
        place = f"model {self.model} at {display_url(self.endpoint.url)} (rollout.agent.forward)"
        return f"{place}: {one_line(problem, EXCERPT_BYTES)}"

    def _excerpt(self, start: bytes) -> str:
        """Return the start of an error without a part of the API key at its end."""
        key = self.endpoint.api_key.strip()
        text = start.decode(errors="replace")
        parts = (key[:length] for length in range(len(key), 0, -1))
        return text.removesuffix(next(filter(text.endswith, parts), ""))


def _abort(request: web.Request) -> None:
    """Close the connection, so that the client does not take a part for the whole response."""
    if request.transport is not None:
        request.transport.abort()


def _headers(source: aiohttp.ClientResponse) -> Iterator[tuple[str, str]]:
    for name in PASSED_HEADERS:
        value = source.headers.get(name, "")
        if value and value.isascii() and value.isprintable():  # others cannot be sent
            yield name, value
