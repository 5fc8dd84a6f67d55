"""Requests for a range of a file over HTTP."""

from .failures import RangeIgnored


def range_headers(start: int, stop: int | None) -> dict[str, str]:
    """Return the headers of a request for a range; without `stop`, none: the whole file."""
    return {} if stop is None else {"Range": f"bytes={start}-{stop - 1}"}


def require_range(status: int, start: int, stop: int | None) -> None:
    """Raise RangeIgnored unless a response with this status starts with the requested byte."""
    if status != 206 and stop is not None and start > 0:
        raise RangeIgnored
