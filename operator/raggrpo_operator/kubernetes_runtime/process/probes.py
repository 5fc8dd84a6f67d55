"""HTTP endpoints /healthz, /readyz and /metrics.

kopf's own liveness endpoint is not used, because it shows only that the task serving it runs.
"""

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
    """Health of the operator process; times are in seconds on a monotonic clock."""

    clock: Callable[[], float]
    longest_round: Callable[[], float]
    is_ready: Callable[[], bool]
    """Whether the caches are synced or this replica is waiting to become the leader."""
    heartbeat: float = field(init=False)
    stale_since: float | None = None
    """When the caches became stale, or None if they are current."""

    def __post_init__(self) -> None:
        self.heartbeat = self.clock()

    async def run_heartbeat(self) -> None:
        """Update the heartbeat while the event loop is running."""
        while True:
            self.heartbeat = self.clock()
            await asyncio.sleep(HEARTBEAT_SECONDS)

    def problems(self) -> Iterator[str]:
        """Yield the reasons to restart this process."""
        lag = self.clock() - self.heartbeat - HEARTBEAT_SECONDS
        if lag > MAX_LAG_SECONDS:
            yield f"the event loop was blocked for {lag:.0f} s"
        if (round_seconds := self.longest_round()) > MAX_ROUND_SECONDS:
            yield f"a reconcile has been running for {round_seconds:.0f} s"
        if self.stale_since is not None:
            stale = self.clock() - self.stale_since
            if stale > MAX_STALE_SECONDS:
                yield f"the watch caches have been stale for {stale:.0f} s"


@asynccontextmanager
async def serve_probes(
    health: Health, metrics: Callable[[], bytes], port: int
) -> AsyncIterator[list[tuple[str, int]]]:
    """Serve probes and metrics on IPv4 and IPv6 inside this context; yield the addresses."""

    async def healthz(_: web.Request) -> web.Response:
        problems = list(health.problems())
        return web.Response(text="\n".join(problems) or "ok", status=500 if problems else 200)

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
        log.info("serving probes and metrics on %s", bound)
        yield bound
    finally:
        await runner.cleanup()
