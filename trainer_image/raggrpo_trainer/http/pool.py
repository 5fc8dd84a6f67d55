"""HTTP connections for many calls at once; knows neither services nor retries."""

import itertools
from collections.abc import Mapping

import httpx

CONNECTIONS_PER_CLIENT = 8
MAX_CLIENTS = 128


class HttpPool:
    """Spreads calls over several httpx clients, in turn.

    One client looks at all of its connections, for each of them, whenever a call starts or ends:
    with 64 connections that took 10 ms of processor time per call, spread by eights 2 ms.
    """

    def __init__(self, max_concurrency: int) -> None:
        num_clients = min(-(-max_concurrency // CONNECTIONS_PER_CLIENT), MAX_CLIENTS)
        certificates = httpx.create_ssl_context()  # 30 ms each, so one for all
        # Whoever calls limits how much is in flight, and for how long.
        limits = httpx.Limits(max_connections=None)
        self._clients = [
            httpx.AsyncClient(verify=certificates, limits=limits, timeout=None)
            for _ in range(max(num_clients, 1))
        ]
        self._turns = itertools.cycle(self._clients)

    async def post(self, url: str, content: str, headers: Mapping[str, str]) -> httpx.Response:
        """Post `content` and return the whole answer. Raises httpx.RequestError."""
        return await next(self._turns).post(url, content=content, headers=headers)

    async def close(self) -> None:
        """Close all connections."""
        for client in self._clients:
            await client.aclose()
