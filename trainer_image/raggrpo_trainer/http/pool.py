"""HTTP connections for many concurrent calls; knows neither services nor retries."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from aiohttp import ClientResponse, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector

from .responses import MAX_RESPONSE_BYTES, ResponseTooLarge

IDLE_SECONDS = 4.0
"""How long an idle connection stays open; many servers close theirs after 5 s."""

TOLD = ("content-type", "location", "retry-after")
"""The headers of an answer that matter."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A service's answer, whatever its status."""

    status: int
    body: bytes
    encoding: str
    content_type: str = ""
    location: str = ""
    retry_after: str = ""

    @property
    def text(self) -> str:
        """The body, with what cannot be decoded replaced."""
        try:
            return self.body.decode(self.encoding, errors="replace")
        except LookupError:  # the service names an encoding that nobody knows
            return self.body.decode(errors="replace")


class HttpPool:
    """Keeps connections open; concurrency and time limits are up to the caller."""

    async def send(
        self,
        method: str,
        url: str,
        content: str | None,
        headers: Mapping[str, str],
        proxy: str | None,
    ) -> Answer:
        """Send a request and return the answer.

        Raises ClientError, OSError, TooLarge, or ValueError for a header.
        """
        for _ in range(2):  # lets the loop notice connections closed by their server
            await asyncio.sleep(0)
        async with self._session.request(
            method,
            url,
            data=content,
            headers=headers,
            proxy=proxy,
            allow_redirects=False,
        ) as response:
            body = await _bounded(response)
            told = [response.headers.get(name, "") for name in TOLD]
            return Answer(response.status, body, response.charset or "utf-8", *told)

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


async def _bounded(response: ClientResponse) -> bytes:
    """Return the decoded body; it is not read further than the limit."""
    parts, size = [], 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > MAX_RESPONSE_BYTES:
            response.close()
            raise ResponseTooLarge
        parts.append(part)
    return b"".join(parts)


def proxy_for(url: str) -> str | None:
    """Return the proxy configured in the environment for a URL.

    aiohttp itself would look it up in a thread on every call, and send credentials from ~/.netrc.
    """
    address, proxies = urlsplit(url), getproxies()
    proxy = proxies.get(address.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(address.hostname or ""):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"
