"""Limits of responses that are not the content of a file: descriptions, listings and errors."""

from collections.abc import Iterable, Iterator, Mapping

from raggrpo_api.foreign_bodies import (
    MAX_BODY_BYTES,
    MAX_BODY_SECONDS,
    BodyLimit,
    UnsuitableBody,
)
from raggrpo_api.trainer.staging import StagingReason

from .failures import StagingFailed, body_failure


def limited(chunks: Iterable[bytes], server: str) -> Iterator[bytes]:
    """Yield the chunks of a body. Raises StagingFailed if it is too large or takes too long."""
    limit = BodyLimit(server, MAX_BODY_BYTES, MAX_BODY_SECONDS)
    for chunk in chunks:
        try:
            limit.count(chunk)
        except UnsuitableBody as error:
            raise body_failure(error) from error
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
