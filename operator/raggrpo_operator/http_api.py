"""`HttpApi`: HTTP calls to one of a job's servers. Does not interpret answers."""

from contextlib import AbstractAsyncContextManager

import aiohttp

IDLE_SECONDS = 5.0
"""How long an idle connection stays open; with 1,000 jobs, 20 are polled per second."""


def open_session() -> aiohttp.ClientSession:
    """Return a session that many APIs can share; the caller closes it."""
    # No limit: it would hold for all heads together, so that hanging ones starved the others.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS, use_dns_cache=False)
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())


class HttpApi:
    """One server, reached directly: proxies set in the environment are ignored."""

    def __init__(self, session: aiohttp.ClientSession, address: str, token: str = "") -> None:
        self.address = address
        self._session = session
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def call(
        self, method: str, path: str, *, seconds: float, body: object = None
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Send a request; `seconds` limits connecting and each read, not the whole answer."""
        return self._session.request(
            method,
            f"{self.address}{path}",
            json=body,
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(connect=seconds, sock_read=seconds),
            allow_redirects=False,
        )
