"""Limits of the responses that the clients of object stores read into memory."""

import math
from typing import Any

import aiohttp
from aiobotocore.httpsession import AIOHTTPSession

from .bodies import MAX_BODY_BYTES, MAX_BODY_SECONDS, BodyLimit
from .draft import PART_BYTES

MAX_RANGE_BYTES = 2 * PART_BYTES
"""The largest response is a range of an object; a client parses others into more memory."""


class _LimitedReader:
    """The reader of a body. Other attributes are those of aiohttp's reader."""

    def __init__(self, reader: aiohttp.StreamReader, limit: BodyLimit) -> None:
        self._reader, self._limit = reader, limit

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
        is_range = self.ok and "Range" in self.request_info.headers
        limits = (MAX_RANGE_BYTES, math.inf) if is_range else (MAX_BODY_BYTES, MAX_BODY_SECONDS)
        reader = _LimitedReader(self.content, BodyLimit(self.host, *limits))
        self.content = reader  # type: ignore[assignment]
        return response


class LimitedS3Session(AIOHTTPSession):  # type: ignore[misc]
    """The connections of an S3 client, which has no option for the type of responses."""

    async def _get_session(self, proxy_url: Any) -> aiohttp.ClientSession:
        session: aiohttp.ClientSession = await super()._get_session(proxy_url)
        session._response_class = LimitedResponse
        return session
