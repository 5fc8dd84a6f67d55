"""Limits of responses that are not the content of a file: descriptions, listings and errors."""

import time
from collections.abc import Iterable, Iterator, Mapping

from raggrpo_api.trainer.staging import StagingReason

from .failures import StagingFailed

MAX_BODY_BYTES = 16 * 2**20
MAX_BODY_SECONDS = 120.0


def limited(chunks: Iterable[bytes], server: str) -> Iterator[bytes]:
    """Yield the chunks of a body. Raises StagingFailed if it is too large or takes too long."""
    deadline = time.monotonic() + MAX_BODY_SECONDS
    size = 0
    for chunk in chunks:
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise StagingFailed(
                StagingReason.UNSUITABLE_CONTENT,
                f"{server} sent a response of more than {MAX_BODY_BYTES:,} bytes, which is not the "
                "content of a file; check the address of the server",
            )
        if time.monotonic() > deadline:
            raise StagingFailed(
                StagingReason.UNREACHABLE,
                f"{server} did not complete a response within {MAX_BODY_SECONDS:.0f} s; start "
                "again later",
            )
        yield chunk


def require_plain(headers: Mapping[str, str], server: str) -> None:
    """Raise StagingFailed if a body is compressed, although no request accepts that."""
    encoding = headers.get("Content-Encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise StagingFailed(
            StagingReason.UNSUITABLE_CONTENT,
            f"{server} compressed a response that must not be ({encoding[:40]!r}); configure the "
            "server or mirror to honor Accept-Encoding: identity",
        )
