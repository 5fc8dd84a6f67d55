"""Proxy of the API server that can block lists and close watches."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer
from yarl import URL

PASSED_ON = ("Authorization", "Accept", "Content-Type", "User-Agent")
GONE = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}
"""Event of the API server for a watch whose resource version has expired."""


class ApiServerProxy:
    """Forwards the requests of a client to the API server."""

    def __init__(self, server: str, session: aiohttp.ClientSession) -> None:
        self._server, self._session = server, session
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._held: tuple[str, ...] = ()
        self._watches: set[asyncio.Task[None]] = set()
        self.lists_held = 0

    def hold(self, *plurals: str) -> None:
        """Block lists of these resources and close their watches."""
        self._held = plurals
        self._is_open.clear()
        for watch in list(self._watches):
            watch.cancel()

    def release(self) -> None:
        self._held = ()
        self._is_open.set()

    async def forward(self, request: web.Request) -> web.StreamResponse:
        is_watch = "watch" in request.query
        if request.method == "GET" and request.path.rpartition("/")[2] in self._held:
            if is_watch:
                return web.json_response(GONE)
            self.lists_held += 1
            await self._is_open.wait()
        headers = {name: request.headers[name] for name in PASSED_ON if name in request.headers}
        async with self._session.request(
            request.method,
            URL(f"{self._server}{request.raw_path}", encoded=True),
            headers=headers,
            data=await request.read() or None,
        ) as response:
            answer = web.StreamResponse(
                status=response.status, headers={"Content-Type": response.headers["Content-Type"]}
            )
            await answer.prepare(request)
            passing = asyncio.create_task(self._pass(response, answer))
            if is_watch:
                self._watches.add(passing)
                passing.add_done_callback(self._watches.discard)
            await asyncio.wait([passing])
        return answer

    @staticmethod
    async def _pass(response: aiohttp.ClientResponse, answer: web.StreamResponse) -> None:
        async for chunk in response.content.iter_any():
            await answer.write(chunk)


@asynccontextmanager
async def open_proxy(kubeconfig: Path, folder: Path) -> AsyncIterator[tuple[ApiServerProxy, Path]]:
    """Yield a proxy and the kubeconfig of a client that uses it."""
    content = yaml.safe_load(kubeconfig.read_text())  # noqa: ASYNC240
    cluster = content["clusters"][0]["cluster"]
    trusted = ssl.create_default_context()
    trusted.check_hostname, trusted.verify_mode = False, ssl.CERT_NONE
    connector = aiohttp.TCPConnector(limit=0, ssl=trusted)
    async with aiohttp.ClientSession(
        connector=connector, timeout=aiohttp.ClientTimeout(total=None)
    ) as session:
        way = ApiServerProxy(cluster["server"], session)
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", way.forward)
        async with TestServer(app) as server:
            content["clusters"][0]["cluster"] = {"server": str(server.make_url("/")).rstrip("/")}
            taken = folder / "interrupted.kubeconfig"
            taken.write_text(yaml.safe_dump(content))
            yield way, taken
