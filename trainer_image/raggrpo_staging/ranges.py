"""Requests for a range of a file over HTTP."""

import re
from collections.abc import Mapping

from raggrpo_api.trainer.staging import StagingReason

from .failures import RangeIgnored, StagingFailed
from .remote import RemoteFile

_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)", re.IGNORECASE)


def range_headers(start: int, stop: int | None) -> dict[str, str]:
    """Return the headers of a request for a range; without `stop`, none: the whole file."""
    return {} if stop is None else {"Range": f"bytes={start}-{stop - 1}"}


def require_range(
    status: int, headers: Mapping[str, str], file: RemoteFile, start: int, stop: int | None
) -> None:
    """Raise RangeIgnored unless a response starts with the requested byte.

    Raises StagingFailed if it is another range, or that of a file of another size.
    """
    if status != 206:
        if stop is not None and start > 0:
            raise RangeIgnored
        return
    sent = headers.get("Content-Range", "").strip()
    match = _CONTENT_RANGE.fullmatch(sent)
    is_requested = match is not None and (int(match[1]), int(match[2]) + 1) == (start, stop)
    if match is None or not is_requested or (match[3] != "*" and int(match[3]) != file.size):
        expected = "the whole file" if stop is None else f"bytes {start}-{stop - 1}/{file.size}"
        raise StagingFailed(
            StagingReason.UNSUITABLE_CONTENT,
            f"the server of {file.location} sent {sent[:100]!r} instead of {expected}; check the "
            "server or mirror",
        )
