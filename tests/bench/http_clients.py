"""What a small JSON call costs the trainer's process with httpx and with aiohttp.

    python tests/bench/http_clients.py [CALLS]

The server is a process of its own, so that only the client's processor time counts; both clients
take turns in the same run, and each is measured three times. Prints a table, asserts nothing.
"""

import asyncio
import itertools
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from statistics import median

import aiohttp
import httpx
from aiohttp import web

CALLS = 2000
CALLS_ONE_BY_ONE = 200
CONCURRENCY = (1, 32, 256)
DELAYS = (0.0, 0.02)
TURNS = 3
PER_HTTPX_CLIENT = 8
"""One httpx client looks at all of its connections for each call: 64 cost 10 ms of it."""
REQUEST = json.dumps({"queries": ["what does a fixed rate loan cost? " * 10], "topk": 3})
ANSWER = {"result": [{"document": {"id": str(i), "contents": "word " * 125}} for i in range(3)]}
HEADERS = {"content-type": "application/json", "authorization": "Bearer " + "x" * 32}

Call = Callable[[], Awaitable[str]]


def serve() -> None:
    """Answer on a free port, which goes to standard output, until killed."""

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        await asyncio.sleep(float(request.query["delay"]))
        return web.json_response(ANSWER)

    async def run() -> None:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
        print(runner.addresses[0][1], flush=True)
        await asyncio.Event().wait()

    app = web.Application()
    app.router.add_post("/", answer)
    runner = web.AppRunner(app, access_log=None)
    asyncio.run(run())


@asynccontextmanager
async def by_httpx(url: str, concurrency: int) -> AsyncIterator[Call]:
    """Several clients in turn, each with few connections."""
    async with AsyncExitStack() as stack:
        certificates = httpx.create_ssl_context()
        clients = [
            await stack.enter_async_context(
                httpx.AsyncClient(
                    verify=certificates, limits=httpx.Limits(max_connections=None), timeout=None
                )
            )
            for _ in range(-(-concurrency // PER_HTTPX_CLIENT))
        ]
        turns = itertools.cycle(clients)

        async def call() -> str:
            return (await next(turns).post(url, content=REQUEST, headers=HEADERS)).text

        yield call


@asynccontextmanager
async def by_aiohttp(url: str, concurrency: int) -> AsyncIterator[Call]:
    """One session; as above, whoever calls limits how much is in flight."""
    connector, no_limit = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=no_limit) as session:

        async def call() -> str:
            async with session.post(url, data=REQUEST, headers=HEADERS) as answer:
                return await answer.text()

        yield call


CLIENTS = {"httpx": by_httpx, "aiohttp": by_aiohttp}


async def measure(client: str, url: str, concurrency: int, calls: int) -> tuple[float, float]:
    """Return calls per second and processor seconds per 1,000 calls; connections are open."""
    async with CLIENTS[client](url, concurrency) as call:
        left = iter(range(calls))

        async def work() -> None:
            for _ in left:
                async with asyncio.timeout(30):  # as the trainer does
                    json.loads(await call())

        await asyncio.gather(*(call() for _ in range(concurrency)))
        began, spent = time.perf_counter(), time.process_time()
        await asyncio.gather(*(work() for _ in range(concurrency)))
        spent, seconds = time.process_time() - spent, time.perf_counter() - began
    return calls / seconds, spent / calls * 1000


def main() -> None:
    if sys.argv[1:] == ["serve"]:
        return serve()
    calls = int(sys.argv[1]) if sys.argv[1:] else CALLS
    print("in flight  delay  client   calls/s (3 times)    CPU s per 1,000 calls  CPU ratio")
    with subprocess.Popen([sys.executable, __file__, "serve"], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        for concurrency, delay in itertools.product(CONCURRENCY, DELAYS):
            url = f"http://127.0.0.1:{port}/?delay={delay}"
            number = min(calls, CALLS_ONE_BY_ONE) if concurrency == 1 else calls
            found: dict[str, list[tuple[float, float]]] = {name: [] for name in CLIENTS}
            for _, name in itertools.product(range(TURNS), CLIENTS):
                found[name].append(asyncio.run(measure(name, url, concurrency, number)))
            spent = {name: median(cpu for _, cpu in each) for name, each in found.items()}
            for name, each in found.items():
                rates = " ".join(f"{rate:6.0f}" for rate, _ in each)
                costs = " ".join(f"{cpu:6.3f}" for _, cpu in each)
                ratio = spent[name] / spent["aiohttp"]
                print(f"{concurrency:9} {delay:6} {name:8} {rates} {costs}  {ratio:8.1f}")
        server.terminate()


if __name__ == "__main__":
    main()
