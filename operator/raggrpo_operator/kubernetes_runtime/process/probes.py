"""/healthz, /readyz and /metrics, since kopf's own endpoint is healthy as long as its task runs."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

log = logging.getLogger(__name__)

MAX_LAG_SECONDS = 10.0
MAX_ROUND_SECONDS = 600.0
MAX_STALE_SECONDS = 180.0
HEARTBEAT_SECONDS = 1.0


@dataclass
class Health:
    """What the probes check; all times are seconds on one monotonic clock."""

    clock: Callable[[], float]
    longest_round: Callable[[], float]
    is_ready: Callable[[], bool]
    """The caches are filled, or this replica is waiting to become the leader."""
    heartbeat: float = field(init=False)
    behind_since: float | None = None
    """When the caches fell behind the API server; None if they have not."""

    def __post_init__(self) -> None:
        self.heartbeat = self.clock()

    async def run_heartbeat(self) -> None:
        """Show that the event loop is running."""
        while True:
            self.heartbeat = self.clock()
            await asyncio.sleep(HEARTBEAT_SECONDS)

    def problems(self) -> Iterator[str]:
        """Yield why this process should be restarted."""
        lag = self.clock() - self.heartbeat - HEARTBEAT_SECONDS
        if lag > MAX_LAG_SECONDS:
            yield f"the event loop was late by {lag:.0f} s"
        if (round_seconds := self.longest_round()) > MAX_ROUND_SECONDS:
            yield f"a round has taken {round_seconds:.0f} s"
        if self.behind_since is not None:
            behind = self.clock() - self.behind_since
            if behind > MAX_STALE_SECONDS:
                yield f"the watches have missed a change for {behind:.0f} s"


@asynccontextmanager
async def serve_probes(
    health: Health, metrics: Callable[[], bytes], port: int
) -> AsyncIterator[list[tuple[str, int]]]:
    """Serve on IPv4 and IPv6 while the context is open; yields the addresses."""

    async def healthz(_: web.Request) -> web.Response:
        found = list(health.problems())
        return web.Response(text="\n".join(found) or "ok", status=500 if found else 200)

    async def readyz(_: web.Request) -> web.Response:
        ready = health.is_ready()
        return web.Response(text="ok" if ready else "starting", status=200 if ready else 503)

    async def show_metrics(_: web.Request) -> web.Response:
        return web.Response(body=metrics(), content_type="text/plain", charset="utf-8")

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", show_metrics)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, None, port)
        await site.start()
        bound = [(address[0], address[1]) for address in runner.addresses]
        log.info("probes and metrics on %s", bound)
        yield bound
    finally:
        await runner.cleanup()
