"""`HttpApi`: calls to a server of a job, its Ray head or a retriever. Judges no answer."""

from contextlib import AbstractAsyncContextManager

import aiohttp

IDLE_SECONDS = 5.0
"""How long a connection without a call stays open; of 1,000 jobs, 20 are asked a second."""


def open_session() -> aiohttp.ClientSession:
    """Return the connections that many APIs may share; whoever opens them closes them."""
    connector = aiohttp.TCPConnector(keepalive_timeout=IDLE_SECONDS, use_dns_cache=False)
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())


class HttpApi:
    """One server, asked directly: no proxy of the environment stands in between."""

    def __init__(self, session: aiohttp.ClientSession, address: str, token: str = "") -> None:
        self.address = address
        self._session = session
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def call(
        self, method: str, path: str, *, seconds: float, body: object = None
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Ask; `seconds` limits connecting and each wait for the server, not the whole answer."""
        return self._session.request(
            method,
            f"{self.address}{path}",
            json=body,
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(connect=seconds, sock_read=seconds),
            allow_redirects=False,
        )
