"""What a small JSON call costs the calling process with httpx and with aiohttp.

    python tests/bench/http_clients.py [CALLS]

The trainer asks one server with many calls in flight, the operator a thousand Ray heads. The server
is a process of its own, so that only the client's processor time counts; the clients take turns in
the same run, and each is measured three times. Prints a table, asserts nothing.
"""

import asyncio
import itertools
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
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

SERVERS = 1000
"""Ray heads of the operator, each asked in turn: addresses of the loopback interface."""

Call = Callable[[str], Awaitable[str]]


def serve() -> None:
    """Answer on a free port, which goes to standard output, until killed."""

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        await asyncio.sleep(float(request.query["delay"]))
        return web.json_response(ANSWER)

    async def run() -> None:
        await runner.setup()
        await web.TCPSite(runner, "0.0.0.0", 0, backlog=1024).start()
        print(runner.addresses[0][1], flush=True)
        await asyncio.Event().wait()

    app = web.Application()
    app.router.add_post("/", answer)
    runner = web.AppRunner(app, access_log=None)
    asyncio.run(run())


@asynccontextmanager
async def by_httpx(concurrency: int) -> AsyncIterator[Call]:
    """Several clients in turn, each with few connections."""
    async with AsyncExitStack() as stack:
        certificates, limits = httpx.create_ssl_context(), httpx.Limits(max_connections=None)
        clients = [
            await stack.enter_async_context(
                httpx.AsyncClient(verify=certificates, limits=limits, timeout=None)
            )
            for _ in range(-(-concurrency // PER_HTTPX_CLIENT))
        ]
        turns = itertools.cycle(clients)

        async def call(url: str) -> str:
            return (await next(turns).post(url, content=REQUEST, headers=HEADERS)).text

        yield call


@asynccontextmanager
async def by_one_httpx(_: int) -> AsyncIterator[Call]:
    """One client with its own limits, which keep 20 connections."""
    async with httpx.AsyncClient(timeout=10, trust_env=False) as client:

        async def call(url: str) -> str:
            return (await client.post(url, content=REQUEST, headers=HEADERS)).text

        yield call


@asynccontextmanager
async def by_aiohttp(_: int) -> AsyncIterator[Call]:
    """One session; as above, whoever calls limits how much is in flight."""
    connector = aiohttp.TCPConnector(limit=0, use_dns_cache=False)
    timeout = aiohttp.ClientTimeout()
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def call(url: str) -> str:
            async with session.post(url, data=REQUEST, headers=HEADERS) as answer:
                return await answer.text()

        yield call


Client = Callable[[int], AbstractAsyncContextManager[Call]]


async def measure(
    client: Client, urls: Sequence[str], concurrency: int, calls: int
) -> tuple[float, float]:
    """Return calls per second and processor seconds per 1,000 calls."""
    async with client(concurrency) as call:
        left = itertools.islice(itertools.cycle(urls), calls)

        async def work() -> None:
            for url in left:
                async with asyncio.timeout(30):  # as the trainer does
                    json.loads(await call(url))

        await asyncio.gather(*(call(urls[0]) for _ in range(concurrency)))  # opens connections
        began, spent = time.perf_counter(), time.process_time()
        await asyncio.gather(*(work() for _ in range(concurrency)))
        spent, seconds = time.process_time() - spent, time.perf_counter() - began
    return calls / seconds, spent / calls * 1000


def compare(
    case: str, clients: dict[str, Client], urls: Sequence[str], concurrency: int, calls: int
) -> None:
    """Print a line for each client."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in clients}
    for _, name in itertools.product(range(TURNS), clients):
        found[name].append(asyncio.run(measure(clients[name], urls, concurrency, calls)))
    spent = {name: median(cpu for _, cpu in each) for name, each in found.items()}
    for name, each in found.items():
        rates = " ".join(f"{rate:6.0f}" for rate, _ in each)
        costs = " ".join(f"{cpu:6.3f}" for _, cpu in each)
        print(f"{case:30} {name:12} {rates}   {costs}  {spent[name] / spent['aiohttp']:5.1f}")


def main() -> None:
    if sys.argv[1:] == ["serve"]:
        return serve()
    calls = int(sys.argv[1]) if sys.argv[1:] else CALLS
    print(f"{'':30} client       calls/s (3 times)      CPU s per 1,000 calls  ratio")
    with subprocess.Popen([sys.executable, __file__, "serve"], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        trainer: dict[str, Client] = {"httpx": by_httpx, "aiohttp": by_aiohttp}
        for concurrency, delay in itertools.product(CONCURRENCY, DELAYS):
            urls = [f"http://127.0.0.1:{port}/?delay={delay}"]
            number = min(calls, CALLS_ONE_BY_ONE) if concurrency == 1 else calls
            case = f"{concurrency} in flight, {delay * 1000:.0f} ms"
            compare(case, trainer, urls, concurrency, number)
        operator: dict[str, Client] = {"one httpx": by_one_httpx, "aiohttp": by_aiohttp}
        hosts = [f"127.0.{n // 250}.{n % 250 + 1}" for n in range(SERVERS)]
        urls = [f"http://{host}:{port}/?delay=0" for host in hosts]
        for concurrency in (1, 32):
            case = f"{concurrency} in flight, {SERVERS} servers"
            compare(case, operator, urls, concurrency, calls)
        server.terminate()


if __name__ == "__main__":
    main()
