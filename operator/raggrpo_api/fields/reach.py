"""Markers of the fields that determine which servers and Secrets the pods of a job can reach.

The egress rules of a job's NetworkPolicy, the limits of the chart's `jobPolicy` and a page of the
reference are derived from these markers. A field that names a server or a Secret must have one.
"""

from dataclasses import dataclass
from typing import Final

REDIRECTING_VARIABLES: Final = (
    "^(?i:[a-z0-9_]*(proxy|endpoint)[a-z0-9_]*|([a-z0-9_]*[^c])?url[a-z0-9_]*"
    "|([a-z0-9_]*_)?(uri|hosts?|hostport|server|mirror|gateway|registry|addr|address|dsn|index"
    "|api_base)(_[a-z0-9_]*)?|fsspec_.*|hostaliases|localdomain|res_options|netrc|boto_config"
    "|[a-z0-9_]*_(config|credentials)_file)$"
)
"""RE2 pattern of environment variables that may determine which server a client calls."""
REDIRECTING_HEADERS: Final = (
    "^(?i:host|forwarded|x-forwarded-[a-z-]+|x-host|x-original-[a-z-]+|x-rewrite-[a-z-]+"
    "|x-http-host-override)$"
)
"""RE2 pattern of HTTP headers that may determine which service a proxy forwards a request to."""


@dataclass(frozen=True, slots=True)
class Server:
    """Marks a field that makes the pods call a server if it is not empty."""

    url: str = ""
    """URL of the server; empty: the value of the field."""


class SecretName:
    """Marks a field that contains the name of a Secret, which the pods can then read."""


class HeaderName:
    """Marks a field that contains the name of an HTTP header."""
