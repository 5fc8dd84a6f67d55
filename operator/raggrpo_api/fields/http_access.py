"""Conditions under which our HTTP servers serve a request: bearer token and `Host` header.

Must not import pydantic. On loopback, `Host` is checked so that a web page whose host name resolves
to the loopback address (DNS rebinding) cannot use a browser of this machine as a proxy.
"""

import hmac
import re

_LOOPBACK_HOST = re.compile(r"(127(\.\d{1,3}){3}|localhost|\[::1\])(:\d{1,5})?", re.IGNORECASE)


def bearer(token: str) -> str:
    """Return the value of the `Authorization` header for a token."""
    return f"Bearer {token}"


def is_authorized(authorization: str, token: str) -> bool:
    """Return whether the value of an `Authorization` header carries the token, in constant time."""
    return hmac.compare_digest(authorization.encode(errors="replace"), bearer(token).encode())


def is_loopback_host(host: str) -> bool:
    """Return whether the value of a `Host` header names the loopback interface."""
    return _LOOPBACK_HOST.fullmatch(host) is not None
