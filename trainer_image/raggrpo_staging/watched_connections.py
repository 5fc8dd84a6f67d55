"""Connections whose servers must make progress: those of requests, and those of httpx."""

import http.client
import io
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import httpcore2
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from raggrpo_api.foreign_bodies import Reception


class _WatchedReader(io.RawIOBase):
    """The reader of a socket."""

    def __init__(self, reader: io.RawIOBase, reception: Reception) -> None:
        self._reader, self.reception = reader, reception

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        started = time.monotonic()
        size: int | None = self._reader.readinto(buffer)
        self.reception.add_read(size or 0, time.monotonic() - started)
        return size

    def close(self) -> None:
        self._reader.close()
        super().close()


class _ChunkReader(io.BufferedReader):
    """A buffer from which one line is read per chunk of a body."""

    def __init__(self, reader: _WatchedReader) -> None:
        super().__init__(reader)
        self._reception = reader.reception

    def readline(self, size: int | None = -1, /) -> bytes:
        self._reception.add_chunk()
        return super().readline(size)


class _Response(http.client.HTTPResponse):
    def __init__(self, *arguments: Any, server: str, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._reception = Reception(server)
        self.fp = _ChunkReader(_WatchedReader(self.fp.detach(), self._reception))

    def begin(self) -> None:
        super().begin()
        self._reception.start_body()


class _Connection(HTTPConnection):
    @property
    def response_class(self) -> Callable[..., http.client.HTTPResponse]:  # type: ignore[override]
        return partial(_Response, server=self.host)


class _SecureConnection(HTTPSConnection, _Connection):
    pass


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


POOLS = {"http": _Pool, "https": _SecurePool}
"""Classes of pools of urllib3, by scheme."""


class _WatchedStream(httpcore2.NetworkStream):
    def __init__(self, stream: httpcore2.NetworkStream, reception: Reception) -> None:
        self._stream, self._reception = stream, reception

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        started = time.monotonic()
        content = self._stream.read(max_bytes, timeout)
        self._reception.add_read(len(content), time.monotonic() - started)
        return content

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._reception.start_head()
        self._stream.write(buffer, timeout)

    def close(self) -> None:
        self._stream.close()

    def start_tls(self, *arguments: Any, **options: Any) -> httpcore2.NetworkStream:
        return _WatchedStream(self._stream.start_tls(*arguments, **options), self._reception)

    def get_extra_info(self, info: str) -> Any:
        return self._reception if info == RECEPTION else self._stream.get_extra_info(info)


RECEPTION = "raggrpo.reception"
"""Name of the Reception in the information about a stream."""


class WatchedBackend(httpcore2.SyncBackend):
    """Opens watched connections for httpx."""

    def connect_tcp(
        self, host: str, port: int, *arguments: Any, **options: Any
    ) -> httpcore2.NetworkStream:
        """Return the stream of a connection."""
        stream = super().connect_tcp(host, port, *arguments, **options)
        return _WatchedStream(stream, Reception(host))
