"""HTTP connections for many concurrent calls; knows neither services nor retries."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector

IDLE_SECONDS = 4.0
"""How long an idle connection stays open; many servers close theirs after 5 s."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A service's answer, whatever its status."""

    status: int
    body: bytes
    encoding: str

    @property
    def text(self) -> str:
        """The body, with what cannot be decoded replaced."""
        return self.body.decode(self.encoding, errors="replace")


class HttpPool:
    """Keeps connections open; concurrency and time limits are up to the caller."""

    async def post(
        self, url: str, content: str, headers: Mapping[str, str], proxy: str | None
    ) -> Answer:
        """Post and return the answer. Raises ClientError, OSError, or ValueError for a header."""
        for _ in range(2):  # lets the loop notice connections closed by their server
            await asyncio.sleep(0)
        async with self._session.post(
            url, data=content, headers=headers, proxy=proxy, allow_redirects=False
        ) as response:
            return Answer(response.status, await response.read(), response.get_encoding())

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    @cached_property
    def _session(self) -> ClientSession:
        """Opened by the first call, because it needs a running event loop."""
        return ClientSession(
            connector=TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS, use_dns_cache=False),
            cookie_jar=DummyCookieJar(),  # sticky-session cookies would defeat load balancing
            timeout=ClientTimeout(),
        )


def proxy_of(url: str) -> str | None:
    """Return the proxy configured in the environment for a URL.

    aiohttp itself would look it up in a thread on every call, and send credentials from ~/.netrc.
    """
    address, proxies = urlsplit(url), getproxies()
    proxy = proxies.get(address.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(address.hostname or ""):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"
