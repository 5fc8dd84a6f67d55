"""`HttpAgent`: an application that is a service, which answers one request per sample."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from raggrpo_api.secrets.redaction import display_url
from raggrpo_trainer.call_failures import CallFailed, FailureCause
from raggrpo_trainer.http.background_tasks import BackgroundTasks
from raggrpo_trainer.http.diagnosis import DOWN_STATUSES, UNREACHABLE
from raggrpo_trainer.http.json_service import ONE_TRY, JsonService, Request
from raggrpo_trainer.http.pool import HttpPool, proxy_for
from raggrpo_trainer.http.service_gate import OutageListener, ServiceGate

from .runner import SOURCE, AgentUnavailable

MAX_CONCURRENCY = 512
"""Maximum runs at the same time: the number for which the gateway is measured."""
MAX_SECONDS = 86_400.0
"""Timeout of a request; the collector has the job's, on a clock that pauses."""
PROBE_SECONDS = 10.0


class HttpAgent:
    """Posts requests to an application; runs wait while it is down."""

    def __init__(
        self,
        url: str,
        base_url: str,
        outages: OutageListener,
        *,
        sends_trace: bool,
        concurrency: int = 1,
    ) -> None:
        """With `sends_trace`, the header `traceparent` has the key of the sample.

        `concurrency` is the number of runs at the same time, at most MAX_CONCURRENCY.
        """
        self._url, self._base_url, self._sends_trace = url, base_url, sends_trace
        self._http = HttpPool()
        self._tasks = BackgroundTasks()
        self._slots = asyncio.Semaphore(min(concurrency, MAX_CONCURRENCY))
        name = f"{SOURCE} {display_url(url)}"
        self._gate = ServiceGate(name, self.is_up, outages, self._tasks)

    @asynccontextmanager
    async def slot(self) -> AsyncIterator["_HttpSlot"]:
        """Yield a slot with a new key."""
        async with self._slots:
            await self._gate.wait_until_up()
            yield _HttpSlot(self, self._base_url)

    async def close(self) -> None:
        """Close all connections."""
        await self._tasks.close()
        await self._http.close()

    async def post(self, request: Any, key: str) -> Any:
        """Return the response. Raises CallFailed, or AgentUnavailable after an outage."""
        trace = {"traceparent": f"00-{key}-{secrets.token_hex(8)}-01"} if self._sends_trace else {}
        service = JsonService(
            self._http,
            self._url,
            headers=trace,
            timeout_seconds=MAX_SECONDS,
            max_concurrency=1,
            retry=ONE_TRY,
        )
        try:
            return await service.post(Request(request), lambda response: response)
        except CallFailed as failure:
            is_down = _is_down(failure)
            has_status = failure.cause is FailureCause.HTTP_STATUS
            cause = FailureCause.RAISED if has_status else failure.cause
            if is_down and await self._gate.wait_if_down(str(failure)):
                raise AgentUnavailable(CallFailed(cause, failure.detail)) from failure
            raise CallFailed(cause, failure.detail, transient=is_down) from failure

    async def is_up(self) -> bool:
        """Return whether the application responds to requests."""
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                response = await self._http.send("GET", self._url, None, {}, proxy_for(self._url))
        except (aiohttp.ClientError, OSError):
            return False
        return response.status not in DOWN_STATUSES


class _HttpSlot:
    """The key of one sample."""

    def __init__(self, agent: HttpAgent, base_url: str) -> None:
        self.key = secrets.token_hex(16)
        self.base_url = base_url
        self._agent = agent

    async def run(self, request: Any) -> Any:
        """Return the response of the application."""
        return await self._agent.post(request, self.key)


def _is_down(failure: CallFailed) -> bool:
    return failure.status in DOWN_STATUSES or failure.cause in UNREACHABLE
