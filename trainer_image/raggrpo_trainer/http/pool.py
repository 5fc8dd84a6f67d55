"""HTTP connections for many concurrent calls; knows nothing about services or retries."""

import itertools
from collections.abc import Mapping

import httpx

CONNECTIONS_PER_CLIENT = 8
MAX_CLIENTS = 128


class HttpPool:
    """Spreads calls over several httpx clients, round-robin.

    Whenever a call starts or ends, a client does work quadratic in its number of connections:
    64 connections cost 10 ms of CPU per call in one client, 2 ms in clients of eight each.
    """

    def __init__(self, max_concurrency: int) -> None:
        num_clients = min(-(-max_concurrency // CONNECTIONS_PER_CLIENT), MAX_CLIENTS)
        certificates = httpx.create_ssl_context()  # 30 ms each, so one for all
        # Callers limit concurrency and duration.
        limits = httpx.Limits(max_connections=None)
        self._clients = [
            httpx.AsyncClient(verify=certificates, limits=limits, timeout=None)
            for _ in range(max(num_clients, 1))
        ]
        self._turns = itertools.cycle(self._clients)

    async def post(self, url: str, content: str, headers: Mapping[str, str]) -> httpx.Response:
        """Post `content` and return the complete response. Raises httpx.RequestError."""
        return await next(self._turns).post(url, content=content, headers=headers)

    async def close(self) -> None:
        """Close all connections."""
        for client in self._clients:
            await client.aclose()
