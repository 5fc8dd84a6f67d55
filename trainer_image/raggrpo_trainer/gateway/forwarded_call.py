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

EXCERPT_BYTES = 400
"""Length of the part of an error that failures show."""
PASSED_HEADERS: Final = ("Content-Type", "Retry-After", "X-Request-Id")
PATH_PREFIX: Final = "/v1/"


@dataclass(frozen=True, slots=True)
class ForwardedCall:
    """A call of a model at an endpoint."""

    trajectory: Trajectory
    endpoint: Endpoint
    model: str

    async def deliver(
        self, request: web.Request, forwarder: Forwarder, body: bytes
    ) -> web.StreamResponse:
        """Pass the response on to the client. Raises RequestRejected if there is none."""
        path = request.path.removeprefix(PATH_PREFIX)
        try:
            source = await forwarder.send(self.endpoint, path, body)
        except CallFailed as failure:
            raise self._rejected(str(failure)) from failure
        async with source:
            if 300 <= source.status < 400:
                raise self._rejected(f"status {source.status} redirects; set url to its target")
            return await self._pass_on(source, request)

    async def _pass_on(
        self, source: aiohttp.ClientResponse, request: web.Request
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=source.status, headers=dict(_headers(source)))
        await response.prepare(request)
        start = b""
        try:
            async for chunk in source.content.iter_any():
                start = start or chunk[:EXCERPT_BYTES]
                await response.write(chunk)
        except aiohttp.ClientError as error:
            self._record(f"the response broke off ({type(error).__name__})")
            if request.transport is not None:
                request.transport.abort()
            return response
        if source.status >= 400:
            self._record(f"status {source.status}: {start.decode(errors='replace')}")
        await response.write_eof()
        return response

    def _record(self, problem: str) -> None:
        self.trajectory.record_failure(TrajectoryCause.FORWARD_FAILED, self._described(problem))

    def _rejected(self, problem: str) -> RequestRejected:
        cause = TrajectoryCause.FORWARD_FAILED
        return RequestRejected(502, self._described(problem), code="forward_failed", cause=cause)

    def _described(self, problem: str) -> str:
        """Return a problem with its place, without the API key, which services may repeat."""
        if key := self.endpoint.api_key.strip():
            problem = problem.replace(key, "***")
        place = f"model {self.model} at {display_url(self.endpoint.url)} (rollout.agent.forward)"
        return f"{place}: {one_line(problem, EXCERPT_BYTES)}"


def _headers(source: aiohttp.ClientResponse) -> Iterator[tuple[str, str]]:
    for name in PASSED_HEADERS:
        if name in source.headers:
            yield name, source.headers[name]
