"""Limits of the responses that the clients of object stores read into memory."""

from typing import Any

import aiohttp
from aiobotocore.httpsession import AIOHTTPSession

from .bodies import BodyLimit
from .draft import PART_BYTES

MAX_RESPONSE_BYTES = 2 * PART_BYTES
"""The largest response is a range of an object."""


class _LimitedReader:
    """The reader of a body. Other attributes are those of aiohttp's reader."""

    def __init__(self, reader: aiohttp.StreamReader, server: str) -> None:
        self._reader, self._limit = reader, BodyLimit(server, MAX_RESPONSE_BYTES)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    async def read(self, n: int = -1) -> bytes:
        """Return at most `n` bytes, or all. Raises StagingFailed if there are too many."""
        if n >= 0:
            return await self._reader.read(n)
        chunks = []
        while chunk := await self._reader.readany():
            self._limit.count(chunk)
            chunks.append(chunk)
        return b"".join(chunks)


class LimitedResponse(aiohttp.ClientResponse):
    """A response whose body is limited."""

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        """Read the headers."""
        response = await super().start(connection)
        self.content = _LimitedReader(self.content, self.host)  # type: ignore[assignment]
        return response


class LimitedS3Session(AIOHTTPSession):  # type: ignore[misc]
    """The connections of an S3 client, which has no option for the type of responses."""

    async def _get_session(self, proxy_url: Any) -> aiohttp.ClientSession:
        session: aiohttp.ClientSession = await super()._get_session(proxy_url)
        session._response_class = LimitedResponse
        return session
