"""Limits of the responses that the clients of object stores read into memory."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable
from functools import partial
from typing import Any
from urllib.parse import urlsplit
from xml.parsers.expat import ExpatError, ParserCreate

import aiohttp
from aiobotocore.httpsession import AIOHTTPSession
from botocore.exceptions import HTTPClientError
from multidict import CIMultiDict, CIMultiDictProxy

from raggrpo_api.foreign_bodies import (
    MAX_BODY_BYTES,
    MAX_BODY_SECONDS,
    MAX_HEAD_SECONDS,
    BodyLimit,
    Reception,
    UnsuitableBody,
    unsuitable_body,
)

MAX_RANGE_BYTES = 64 * 2**20
"""The largest response is a range of an object; a client parses others into more memory."""


REDIRECTS = (301, 302, 303, 307, 308)


class _ChunkEnds(deque[int]):
    """The ends of chunks that aiohttp has received, as positions in the body."""

    received = 0
    """Number of chunks since it was last reset."""

    def append(self, position: int, /) -> None:
        self.received += 1
        super().append(position)


class _LimitedReader:
    """The reader of a body. Other attributes are those of aiohttp's reader."""

    def __init__(
        self, reader: aiohttp.StreamReader, limit: BodyLimit, reception: Reception
    ) -> None:
        self._reader, self._limit, self._reception = reader, limit, reception
        self._chunks = _ChunkEnds()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def count_chunks(self) -> None:
        """Count the chunks of a body with `Transfer-Encoding: chunked`, which aiohttp joins."""
        for position in self._reader._http_chunk_splits or ():
            self._chunks.append(position)
        self._reader._http_chunk_splits = self._chunks

    async def read(self, n: int = -1) -> bytes:
        """Return at most `n` bytes, or all. Raises UnsuitableBody if they are many, or slow."""
        if n >= 0:
            return await self._watched(self._reader.read(n))
        chunks = []
        while chunk := await self._watched(self._reader.readany()):
            self._limit.count(chunk)
            chunks.append(chunk)
        return b"".join(chunks)

    async def _watched(self, read: Awaitable[bytes]) -> bytes:
        started = time.monotonic()
        content = await read
        self._reception.add_read(len(content), time.monotonic() - started)
        self._reception.add_chunk(self._chunks.received)
        self._chunks.received = 0
        return content


class LimitedResponse(aiohttp.ClientResponse):
    """A response whose head and body are limited, and whose server must make progress."""

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        """Read the headers.

        Raises UnsuitableBody for a redirect: aiohttp would follow it to any server, and send
        `X-Amz-Security-Token` and the body of an upload there. The client of S3 finds the region of
        a bucket by itself.
        """
        try:
            async with asyncio.timeout(MAX_HEAD_SECONDS) as deadline:
                response = await super().start(connection)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise UnsuitableBody(
                f"{self.host} did not complete the headers of a response within "
                f"{MAX_HEAD_SECONDS:.0f} s; start again later",
                is_transient=True,
            ) from error
        if self.status in REDIRECTS and (target := self.headers.get("Location")):
            if "x-amz-bucket-region" not in self.headers:
                raise UnsuitableBody(
                    f"{self.host} redirects to {urlsplit(target).netloc or target}; if you trust "
                    "that server, use it as the endpoint of the store"
                )
            kept = [(name, value) for name, value in self.headers.items() if name != "Location"]
            self._headers = CIMultiDictProxy(CIMultiDict(kept))
            self._cache.pop("headers", None)
        is_range = self.ok and "Range" in self.request_info.headers
        limits = (MAX_RANGE_BYTES, math.inf) if is_range else (MAX_BODY_BYTES, MAX_BODY_SECONDS)
        reception = Reception(self.host)
        reception.start_body()
        reader = _LimitedReader(self.content, BodyLimit(self.host, *limits), reception)
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            reader.count_chunks()
        self.content = reader  # type: ignore[assignment]
        return response


class _Found(Exception):
    """A document type or a root element."""


def _has_document_type(content: bytes) -> bool:
    """Return whether XML has a document type, which precedes its root element."""

    def stop(is_document_type: bool, *_: object) -> None:
        raise _Found(is_document_type)

    parser = ParserCreate("utf-8")  # as in botocore, which ignores the declared encoding
    parser.StartDoctypeDeclHandler = partial(stop, True)
    parser.StartElementHandler = partial(stop, False)
    try:
        parser.Parse(content, True)
    except _Found as found:
        return bool(found.args[0])
    except ExpatError:
        return False
    return False


class LimitedS3Session(AIOHTTPSession):  # type: ignore[misc]
    """The connections of an S3 client, which has no option for the type of responses."""

    async def _get_session(self, proxy_url: Any) -> aiohttp.ClientSession:
        session: aiohttp.ClientSession = await super()._get_session(proxy_url)
        session._response_class = LimitedResponse
        return session

    async def send(self, request: Any) -> Any:
        """Return the response to a request.

        Raises UnsuitableBody, also if a listing is no XML, or if XML has a document type: entities
        that it declares can expand to a hundred times the size of the body.

        botocore would repeat such requests as often as others that fail.
        """
        try:
            response = await super().send(request)
        except HTTPClientError as error:
            if body := unsuitable_body(error):
                raise body from None
            raise
        is_parsed = response.status_code >= 300 or not request.stream_output
        if is_parsed and _has_document_type(await response.content):
            raise UnsuitableBody(
                f"{urlsplit(request.url).hostname} sent XML with a document type; check "
                "that the endpoint is an S3-compatible server"
            )
        if response.status_code == 200 and "list-type=2" in request.url:
            try:
                ParserCreate().Parse(await response.content, True)
            except ExpatError as error:
                raise UnsuitableBody(
                    f"{urlsplit(request.url).hostname} sent a listing that is not valid XML "
                    f"({error}); check that the endpoint is an S3-compatible server"
                ) from error
        return response
