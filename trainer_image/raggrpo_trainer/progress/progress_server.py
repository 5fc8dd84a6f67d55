"""Serves GET /progress and /metrics, POST /stacks and /stop from its own thread. Knows no Ray.

It serves the last update it received, so the state of a blocked or dead driver stays readable.
"""

import asyncio
import hmac
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from aiohttp import web

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
METRICS_PATH = "/metrics"
"""Needs no token: scrapers share one configuration and cannot know each job's token."""
TIMEOUT_SECONDS = 30.0
LOOPBACK = "127.0.0.1"
T = TypeVar("T")


class ProgressServer:
    """Serves until `close`."""

    def __init__(
        self,
        port: int,
        *,
        host: str = LOOPBACK,
        token: str = "",
        dump_stacks: Callable[[], list[int]] = list,
        stop_driver: Callable[[], bool] = bool,
    ) -> None:
        """Listen on `port` (0: any free one) of `host`; `dump_stacks` returns the PIDs it asked.

        `stop_driver` asks the driver to save and exit, and returns whether it still runs.
        Raises OSError if the port is taken.
        """
        self._token = f"Bearer {token}".encode() if token else b""
        self._dump_stacks, self._stop_driver = dump_stacks, stop_driver
        self._latest: tuple[bytes, bytes] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="progress-server", daemon=True)
        self._thread.start()
        try:
            self._runner, self.port = self._await(self._start(host, port))
        except BaseException:
            self._end_thread()
            raise

    def update(self, progress: bytes, metrics: bytes) -> None:
        """Set the content to serve."""
        self._latest = (progress, metrics)

    @property
    def progress(self) -> bytes:
        """The progress served now; empty before the first update."""
        return self._latest[0] if self._latest else b""

    def close(self) -> None:
        """Stop listening and end the thread."""
        self._await(self._runner.cleanup())
        self._end_thread()

    async def _start(self, host: str, port: int) -> tuple[web.AppRunner, int]:
        app = web.Application(middlewares=[self._authenticated])
        app.router.add_get("/progress", self._progress)
        app.router.add_get(METRICS_PATH, self._metrics)
        app.router.add_post("/stacks", self._stacks)
        app.router.add_post("/stop", self._stop)
        runner = web.AppRunner(app, access_log=None)
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
        given = request.headers.get("Authorization", "").encode()
        guarded = self._token and request.path != METRICS_PATH
        if guarded and not hmac.compare_digest(given, self._token):
            raise web.HTTPUnauthorized(
                headers={"WWW-Authenticate": "Bearer"}, text="needs the job's bearer token"
            )
        return await handler(request)

    async def _progress(self, _: web.Request) -> web.Response:
        return web.Response(body=self._given()[0], content_type="application/json")

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._given()[1], headers={"Content-Type": METRICS_TYPE})

    async def _stacks(self, _: web.Request) -> web.Response:
        return web.json_response({"asked": self._dump_stacks()})

    async def _stop(self, _: web.Request) -> web.Response:
        return web.json_response({"running": self._stop_driver()})

    def _given(self) -> tuple[bytes, bytes]:
        if self._latest is None:
            raise web.HTTPServiceUnavailable(text="the driver has not reported yet")
        return self._latest

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT_SECONDS)

    def _end_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_SECONDS)
