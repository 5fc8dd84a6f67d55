"""A pool of HTTP connections. Must not depend on services or retries."""

import asyncio
import os
import ssl
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from aiohttp import ClientResponse, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector

from raggrpo_api import names
from raggrpo_trainer.call_failures import CallFailed, FailureCause

from .responses import MAX_RESPONSE_BYTES, ResponseTooLarge

IDLE_SECONDS = 4.0
"""How long an idle connection stays open; many servers close idle connections after 5 s."""

SMALL_BODY_BYTES = 2**18
"""Part of a body that every call may read."""
LARGE_BODIES = 16
"""Number of longer bodies that a pool reads at a time: 256 MiB. Other calls wait."""

RESPONSE_HEADERS = ("content-type", "location", "retry-after")
"""Headers stored in HttpResponse, in the order of its fields."""

ENCODINGS = frozenset(
    [
        "ascii",
        "big5",
        "euc-jp",
        "euc-kr",
        "gb18030",
        "gb2312",
        "gbk",
        "iso-8859-1",
        "iso-8859-2",
        "iso-8859-15",
        "iso-2022-jp",
        "koi8-r",
        "latin-1",
        "latin1",
        "shift_jis",
        "us-ascii",
        "utf-16",
        "utf-16be",
        "utf-16le",
        "windows-1250",
        "windows-1251",
        "windows-1252",
    ]
)
"""Encodings of texts. Python keeps every name it has looked up, also unknown ones."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """An HTTP response of any status."""

    status: int
    body: bytes
    encoding: str
    content_type: str = ""
    location: str = ""
    retry_after: str = ""

    @property
    def text(self) -> str:
        """The body as text; unknown encodings are read as UTF-8, undecodable bytes replaced."""
        name = self.encoding.lower()
        return self.body.decode(name if name in ENCODINGS else "utf-8", errors="replace")


class HttpPool:
    """Keeps connections open and limits the memory of bodies.

    The caller limits concurrency and time. A body that is longer than SMALL_BODY_BYTES waits for
    one of LARGE_BODIES places, which is enough for all of it, so that waiting calls never block
    each other.
    """

    def __init__(self) -> None:
        self._large_bodies = asyncio.Semaphore(LARGE_BODIES)

    async def send(
        self,
        method: str,
        url: str,
        content: str | None,
        headers: Mapping[str, str],
        proxy: str | None,
    ) -> HttpResponse:
        """Send a request and return the response.

        Raises ClientError, OSError, ResponseTooLarge, ValueError for an invalid header, or
        CallFailed if the file of `spec.caBundle` is invalid.
        """
        async with await self.open(method, url, content, headers, proxy) as response:
            body = await self._read(response)
            headers_read = [response.headers.get(name, "") for name in RESPONSE_HEADERS]
            return HttpResponse(response.status, body, response.charset or "utf-8", *headers_read)

    async def open(
        self,
        method: str,
        url: str,
        content: str | bytes | None,
        headers: Mapping[str, str],
        proxy: str | None,
    ) -> ClientResponse:
        """Send a request and return the response as soon as it starts; the caller must close it.

        Raises the exceptions of `send`.
        """
        for _ in range(2):  # lets the event loop detect connections closed by servers
            await asyncio.sleep(0)
        return await self._session.request(
            method, url, data=content, headers=headers, proxy=proxy, allow_redirects=False
        )

    async def close(self) -> None:
        """Close all connections."""
        if "_session" in self.__dict__:  # a call created it
            await self._session.close()

    async def _read(self, response: ClientResponse) -> bytes:
        """Return the decompressed body. Raises ResponseTooLarge beyond MAX_RESPONSE_BYTES."""
        chunks: list[bytes] = []
        size = 0
        async with AsyncExitStack() as place:
            async for chunk in response.content.iter_any():
                was_small = size <= SMALL_BODY_BYTES
                size += len(chunk)
                if size > MAX_RESPONSE_BYTES:
                    response.close()
                    raise ResponseTooLarge
                if was_small and size > SMALL_BODY_BYTES:
                    await place.enter_async_context(self._large_bodies)
                chunks.append(chunk)
            return b"".join(chunks)

    @cached_property
    def _session(self) -> ClientSession:
        """The session, created by the first call because it requires a running event loop."""
        return ClientSession(
            connector=TCPConnector(
                limit=0,
                keepalive_timeout=IDLE_SECONDS,
                use_dns_cache=False,
                ssl=tls_context(os.environ.get(names.ENV_CA_BUNDLE, "")),
            ),
            cookie_jar=DummyCookieJar(),  # sticky-session cookies would defeat load balancing
            timeout=ClientTimeout(),
        )


def tls_context(ca_file: str) -> ssl.SSLContext | bool:
    """Return a context that trusts the authorities in `ca_file`, too, or True for the default.

    Raises CallFailed (TlsFailure) if the file does not contain certificates.
    """
    if not ca_file:
        return True
    context = ssl.create_default_context()
    try:
        context.load_verify_locations(ca_file)
    except (OSError, ValueError) as error:
        detail = f"spec.caBundle: {ca_file} contains no certificate in PEM format: {error}"
        raise CallFailed(FailureCause.TLS_FAILURE, detail) from error
    return context


def proxy_for(url: str) -> str | None:
    """Return the proxy that the environment configures for a URL, or None.

    aiohttp itself would read the proxy settings in a thread for every call and send credentials
    from ~/.netrc.
    """
    address = urlsplit(url)
    proxies = getproxies()
    proxy = proxies.get(address.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(address.hostname or ""):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"
