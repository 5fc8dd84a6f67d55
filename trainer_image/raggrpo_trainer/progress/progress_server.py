"""Serve GET /progress and /metrics, POST /stacks and /stop from a thread. Must not use Ray.

On loopback, which other users of the machine can reach, every path requires the token. Serves the
last update, so the state of a blocked or dead driver stays readable.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from aiohttp import web

from raggrpo_api.fields.http_access import is_authorized, is_loopback_host
from raggrpo_trainer.http.server_log import server_log

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
METRICS_PATH = "/metrics"
"""Path that requires no token in pods, because scrapers share one configuration for all jobs."""
TIMEOUT_SECONDS = 30.0
LOOPBACK = "127.0.0.1"
T = TypeVar("T")


class ProgressServer:
    """An HTTP server in its own thread; `close` stops it."""

    def __init__(
        self,
        port: int,
        *,
        host: str | None = LOOPBACK,
        token: str = "",
        dump_stacks: Callable[[], list[int]] = list,
        stop_driver: Callable[[], bool] = bool,
    ) -> None:
        """Listen on `port` of `host`, or of all IPv4 and IPv6 addresses if `host` is None.

        Port 0 selects any free port and requires a host, as each family would get its own.
        `dump_stacks` returns the signaled PIDs. `stop_driver` signals the driver to save and exit
        and returns whether it is still running. Raises OSError if the port is in use.
        """
        if host is None and port == 0:
            raise ValueError("port 0 requires a host: IPv4 and IPv6 would get different ports")
        self._token, self._is_local = token, host == LOOPBACK
        self._dump_stacks, self._stop_driver = dump_stacks, stop_driver
        self._latest: tuple[bytes, bytes] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="progress-server", daemon=True)
        self._thread.start()
        try:
            self._runner, self.port = self._await(self._start(host, port))
        except BaseException:
            self._stop_thread()
            raise

    def update(self, progress: bytes, metrics: bytes) -> None:
        """Set the content to serve."""
        self._latest = (progress, metrics)

    @property
    def progress(self) -> bytes:
        """The current content of /progress; empty before the first update."""
        return self._latest[0] if self._latest else b""

    def close(self) -> None:
        """Stop listening and stop the thread."""
        self._await(self._runner.cleanup())
        self._stop_thread()

    async def _start(self, host: str | None, port: int) -> tuple[web.AppRunner, int]:
        app = web.Application(middlewares=[self._authenticated])
        app.router.add_get("/progress", self._progress)
        app.router.add_get(METRICS_PATH, self._metrics)
        app.router.add_post("/stacks", self._stacks)
        app.router.add_post("/stop", self._stop)
        runner = web.AppRunner(app, access_log=None, logger=server_log)
        await runner.setup()
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except BaseException:
            await runner.cleanup()
            raise
        return runner, int(runner.addresses[0][1])

    @web.middleware
    async def _authenticated(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if self._is_local and not is_loopback_host(request.headers.get("Host", "")):
            raise web.HTTPMisdirectedRequest(text="Host is not a loopback address")
        authorization = request.headers.get("Authorization", "")
        needs_token = self._token and (self._is_local or request.path != METRICS_PATH)
        if needs_token and not is_authorized(authorization, self._token):
            raise web.HTTPUnauthorized(
                headers={"WWW-Authenticate": "Bearer"},
                text="the bearer token of the job is required",
            )
        return await handler(request)

    async def _progress(self, _: web.Request) -> web.Response:
        return web.Response(body=self._content()[0], content_type="application/json")

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._content()[1], headers={"Content-Type": METRICS_TYPE})

    async def _stacks(self, _: web.Request) -> web.Response:
        return web.json_response({"asked": self._dump_stacks()})

    async def _stop(self, _: web.Request) -> web.Response:
        return web.json_response({"running": self._stop_driver()})

    def _content(self) -> tuple[bytes, bytes]:
        if self._latest is None:
            raise web.HTTPServiceUnavailable(text="the driver has not reported progress yet")
        return self._latest

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT_SECONDS)

    def _stop_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_SECONDS)
