"""`HttpApi`: the only client of a job's servers; it limits each response in time and size.

A response that exceeds a limit raises Unreachable.
"""

import asyncio
from dataclasses import dataclass

import aiohttp

from raggrpo_api.fields.text import one_line

from .errors import AccessDenied, Unreachable

MAX_EXCERPT = 256
"""Maximum characters of a response quoted in an error."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits in time and size of one call, from connecting to the last byte of the response.

    A reconcile makes one call for the status and one for the progress, then performs its action.
    """

    call_seconds: float = 10.0
    submit_seconds: float = 60.0
    """Limit for looking up and creating a submission, which starts a process on the head."""
    progress_seconds: float = 3.0
    response_bytes: int = 256 * 1024


LIMITS = Limits()


def open_session() -> aiohttp.ClientSession:
    """Return a session that many `HttpApi` objects can share; the caller closes the session."""
    # No connection limit: all heads would share the limit, and hanging heads would block others.
    # No keep-alive: the address of a Service outlives the head behind the Service.
    connector = aiohttp.TCPConnector(limit=0, force_close=True, use_dns_cache=False)
    return aiohttp.ClientSession(
        connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
    )


@dataclass(frozen=True, slots=True)
class Response:
    """A completely received HTTP response."""

    status: int
    body: bytes

    @property
    def excerpt(self) -> str:
        """The start of the body as one printable line."""
        return one_line(self.body[: 4 * MAX_EXCERPT].decode(errors="replace"), MAX_EXCERPT)


class HttpApi:
    """Client of one server; it ignores the proxies in the environment."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        address: str,
        token: str = "",
        limits: Limits = LIMITS,
    ) -> None:
        self.address, self.limits = address, limits
        self._session = session
        # A small compressed response could expand without limit.
        self._headers = {"Accept-Encoding": "identity"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    async def call(
        self,
        method: str,
        path: str,
        *,
        seconds: float,
        body: object = None,
        max_bytes: int | None = None,
    ) -> Response:
        """Return the response if it is complete within `seconds`.

        Raises:
            AccessDenied: HTTP 401 or 403.
            Unreachable: There is no response, or the response exceeds a limit or is compressed.

        """
        try:
            async with asyncio.timeout(seconds):
                response = await self._send(
                    method, path, body, max_bytes or self.limits.response_bytes
                )
        except TimeoutError as error:
            raise Unreachable(
                f"{self.address}: no complete response within {seconds:g} s"
            ) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            why = one_line(f"{type(error).__name__}: {error}", MAX_EXCERPT)
            raise Unreachable(f"{self.address}: {why}") from error
        if response.status in (401, 403):
            raise AccessDenied(f"{self.address}{path}: HTTP {response.status} {response.excerpt}")
        return response

    async def _send(self, method: str, path: str, body: object, max_bytes: int) -> Response:
        async with self._session.request(
            method,
            f"{self.address}{path}",
            json=body,
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(),
            allow_redirects=False,
        ) as response:
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise Unreachable(f"{self.address}: unexpected compressed response")
            read = bytearray()
            async for chunk in response.content.iter_any():
                read += chunk
                if len(read) > max_bytes:
                    raise Unreachable(f"{self.address}: the response exceeds {max_bytes} bytes")
            return Response(response.status, bytes(read))
