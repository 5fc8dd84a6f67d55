"""`HttpApi`: the one door to a job's own servers, whose answers anybody may have written.

Every answer has one limit of time and one of size; what exceeds them is Unreachable, like silence.
"""

import asyncio
from dataclasses import dataclass

import aiohttp

from raggrpo_api.fields.text import one_line

from .errors import AccessDenied, Unreachable

MAX_EXCERPT = 256
"""Characters of an answer that an error repeats."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a call may take, from connecting to the answer's last byte, and what it may bring.

    A round makes one call of status and one of progress, then performs its action.
    """

    call_seconds: float = 10.0
    submit_seconds: float = 60.0
    """Of looking for a submission and making it; that starts a process, slow on a busy machine."""
    progress_seconds: float = 3.0
    answer_bytes: int = 256 * 1024


LIMITS = Limits()


def open_session() -> aiohttp.ClientSession:
    """Return a session that many APIs can share; the caller closes it."""
    # No limit: it would hold for all heads together, so that hanging ones starved the others. And
    # no connection is kept: a Service's address outlives the head that one would lead to.
    connector = aiohttp.TCPConnector(limit=0, force_close=True, use_dns_cache=False)
    return aiohttp.ClientSession(
        connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
    )


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    status: int
    body: bytes

    @property
    def excerpt(self) -> str:
        """The beginning of the body, fit to be shown."""
        return one_line(self.body[: 4 * MAX_EXCERPT].decode(errors="replace"), MAX_EXCERPT)


class HttpApi:
    """One server, reached directly: proxies set in the environment are ignored."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        address: str,
        token: str = "",
        limits: Limits = LIMITS,
    ) -> None:
        self.address, self.limits = address, limits
        self._session = session
        # Compressed, a small answer could grow without limit.
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
    ) -> Answer:
        """Return the answer, which has to be whole within `seconds`.

        Raises:
            AccessDenied: HTTP 401 or 403.
            Unreachable: There is none, or it is too slow, too large or compressed.

        """
        try:
            async with asyncio.timeout(seconds):
                answer = await self._answer(
                    method, path, body, max_bytes or self.limits.answer_bytes
                )
        except TimeoutError as error:
            raise Unreachable(f"{self.address}: no whole answer within {seconds:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            why = one_line(f"{type(error).__name__}: {error}", MAX_EXCERPT)
            raise Unreachable(f"{self.address}: {why}") from error
        if answer.status in (401, 403):
            raise AccessDenied(f"{self.address}{path}: HTTP {answer.status} {answer.excerpt}")
        return answer

    async def _answer(self, method: str, path: str, body: object, max_bytes: int) -> Answer:
        async with self._session.request(
            method,
            f"{self.address}{path}",
            json=body,
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(),
            allow_redirects=False,
        ) as response:
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise Unreachable(f"{self.address}: the answer is compressed, though not asked to")
            read = bytearray()
            async for chunk in response.content.iter_any():
                read += chunk
                if len(read) > max_bytes:
                    raise Unreachable(f"{self.address}: more than {max_bytes} bytes")
            return Answer(response.status, bytes(read))
