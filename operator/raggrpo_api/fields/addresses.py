"""URLs of services and backups: patterns and validation."""

import re
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import StringConstraints

from .reach import Server

_HOST: Final = "[A-Za-z0-9_]([-A-Za-z0-9_]{0,61}[A-Za-z0-9_])?"
_FOLDER: Final = r"[^@?\s\x00-\x1f\x7f-\x9f]*"
HTTP_URL: Final = (
    rf"^(https?://({_HOST}(\.{_HOST})*\.?|\[[0-9A-Fa-f:.]+\])(:[1-9][0-9]{{0,4}})?"
    "([/?][!-?A-~]*)?)?$"
)
"""Pattern of printable ASCII without @, so that all clients read the same host from a URL."""
BACKUP_URL: Final = rf"^((s3|gs)://[A-Za-z0-9][-A-Za-z0-9._]*(/{_FOLDER})?|file:///{_FOLDER})?$"
_DOTS: Final = r"(%20)*[.]([.]|%20)*"
OTHER_PATH_PATTERN: Final = (
    rf"^[A-Za-z0-9]+://[^?#]*(/{_DOTS}((;|%3[Bb])[^/?#]*)?([/?#]|$)|\\|%([^0-9A-Fa-f]|.[^0-9A-Fa-f]|.?$)"
    "|%([01][0-9A-Fa-f]|2[EeFf5]|5[Cc]|7[Ff]|[Cc][01]|[Ee]0%[89]|[Ff]0%8))"
)
"""RE2 pattern of URLs that a client or server may read as the URL of another path.

These are paths with a segment such as `.` or `..`, possibly with parameters, a backslash, an
invalid escape, or an escaped dot, slash, backslash, percent sign or control character, also in an
overlong form of UTF-8.
"""
MAX_URL: Final = 1024
MAX_HOST: Final = 253
MAX_PORT: Final = 65_535

HttpUrl = Annotated[str, StringConstraints(pattern=HTTP_URL, max_length=MAX_URL), Server()]
"""Full URL of a service, without credentials, or empty."""

BackupUrl = Annotated[str, StringConstraints(pattern=BACKUP_URL, max_length=MAX_URL), Server()]
"""URL of a folder in S3, in Google Cloud Storage or on a volume; or empty."""


def has_other_path(url: str) -> bool:
    """Return whether a client or server may read the URL as the URL of another path."""
    return re.search(OTHER_PATH_PATTERN, url) is not None


def url_problem(url: str) -> str:
    """Return why a URL is invalid, or "" if it is valid. The result never contains the URL."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:  # invalid IPv6 address or port; str(error) would contain the URL
        return "its host or port is not valid"
    if port is not None and not 1 <= port <= MAX_PORT:
        return f"its port is not within 1 to {MAX_PORT}"
    if parts.scheme in ("http", "https") and not host:
        return "it has no host"
    if len(host) > MAX_HOST:
        return f"its host has more than {MAX_HOST} characters"
    return "it contains two URLs joined by ::" if "::" in parts.path else ""
