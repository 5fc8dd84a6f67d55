"""An HTTP judge with the latency of a remote service, as a separate process.

    PYTHONPATH=tests .venv/bin/python tests/bench/training/slow_judge.py MEDIAN_SECONDS

Prints its URL and serves until it is killed. Score and delay depend only on the request.
"""

import asyncio
import hashlib
import math
import socket
import sys
from collections.abc import Awaitable, Callable
from statistics import NormalDist

from aiohttp import web

from bench.training.workload import score

LATENCY_SPREAD = 0.3
"""Standard deviation of the log delay: the slowest of 32 calls takes about twice the median."""


def delay(text: str, median: float) -> float:
    """Return the log-normal delay of a request, in seconds. Pure."""
    digest = hashlib.sha256(text.encode()).digest()
    quantile = (int.from_bytes(digest[:4]) + 0.5) / 2**32
    return median * math.exp(LATENCY_SPREAD * NormalDist().inv_cdf(quantile))


def main() -> None:
    median = float(sys.argv[1])

    async def judge(request: web.Request) -> web.Response:
        completion = (await request.json())["completion"]
        await asyncio.sleep(delay(completion, median))
        return web.json_response({"score": score(completion)})

    serve(judge)


def serve(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> None:
    """Print a URL and answer POST requests until the process is killed."""
    app = web.Application()
    app.router.add_post("/", answer)
    listener = socket.create_server(("127.0.0.1", 0))
    sys.stdout.write(f"http://127.0.0.1:{listener.getsockname()[1]}/\n")
    sys.stdout.flush()
    web.run_app(app, sock=listener, print=None, access_log=None)


if __name__ == "__main__":
    main()
