"""Retries of requests that may succeed later, at the time that the server specifies."""

import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

from .failures import StagingFailed

T = TypeVar("T")
TRIES = 7
"""Requests before a failure is final: about one minute without a time from the server."""
MAX_BACKOFF = 30.0
MAX_WAIT = 600.0
"""Maximum seconds that a server may specify."""
_RATE_LIMIT = re.compile(r'"[^"]*"\s*;\s*r\s*=\s*(\d{1,9})\s*;\s*t\s*=\s*(\d{1,9})')


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds to wait according to `Retry-After` or `RateLimit`, or None.

    `RateLimit: "name";r=0;t=5` (draft-ietf-httpapi-ratelimit-headers-09) allows 0 more requests in
    the next 5 seconds.
    """
    fields = {name.lower(): value for name, value in headers.items()}
    if text := fields.get("retry-after", "").strip():
        return _seconds(text)
    limit = _RATE_LIMIT.search(fields.get("ratelimit", ""))
    return float(limit[2]) if limit and limit[1] == "0" else None


def with_retries(
    call: Callable[[], T],
    report: Callable[[str], None],
    sleep: Callable[[float], object] = time.sleep,
) -> T:
    """Return the result of `call`; repeat it while it fails with a transient StagingFailed."""
    for number in range(1, TRIES):
        try:
            return call()
        except StagingFailed as failure:
            if not failure.is_transient:
                raise
            backoff = min(MAX_BACKOFF, 2.0 ** (number - 1))
            wait = backoff if failure.retry_after is None else min(MAX_WAIT, failure.retry_after)
            report(f"Retry {number} in {wait:.0f} s: {failure}")
            sleep(wait)
    return call()


def _seconds(text: str) -> float | None:
    if text.isdecimal():
        return float(text[:9])
    try:
        when = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    now = datetime.now(UTC)
    return max(0.0, (when.replace(tzinfo=when.tzinfo or UTC) - now).total_seconds())
