"""Limits of responses that are not the content of a file: descriptions, listings and errors."""

import time
from collections.abc import Iterable, Iterator, Mapping

from raggrpo_api.trainer.staging import StagingReason

from .failures import StagingFailed

MAX_BODY_BYTES = 16 * 2**20
MAX_BODY_SECONDS = 120.0


class BodyLimit:
    """Limits the bytes and the time of a response."""

    def __init__(self, server: str, limit: int, seconds: float) -> None:
        self._server, self._limit, self._size = server, limit, 0
        self._seconds, self._deadline = seconds, time.monotonic() + seconds

    def count(self, chunk: bytes) -> None:
        """Count a chunk. Raises StagingFailed if the response is too large or takes too long."""
        self._size += len(chunk)
        if self._size > self._limit:
            raise StagingFailed(
                StagingReason.UNSUITABLE_CONTENT,
                f"{self._server} sent a response of more than {self._limit:,} bytes, which is not "
                "the content of a file; check the address of the server",
            )
        if time.monotonic() > self._deadline:
            raise StagingFailed(
                StagingReason.UNREACHABLE,
                f"{self._server} did not complete a response within {self._seconds:.0f} s; start "
                "again later",
            )


def limited(chunks: Iterable[bytes], server: str) -> Iterator[bytes]:
    """Yield the chunks of a body. Raises StagingFailed if it is too large or takes too long."""
    limit = BodyLimit(server, MAX_BODY_BYTES, MAX_BODY_SECONDS)
    for chunk in chunks:
        limit.count(chunk)
        yield chunk


def require_plain(headers: Mapping[str, str], server: str) -> None:
    """Raise StagingFailed if a body is compressed, although no request accepts that."""
    encoding = headers.get("Content-Encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise StagingFailed(
            StagingReason.UNSUITABLE_CONTENT,
            f"{server} sent a compressed response ({encoding[:40]!r}); configure the server or "
            "mirror to honor Accept-Encoding: identity",
        )
