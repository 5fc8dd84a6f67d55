"""Keys that name a trajectory to the gateway: API keys, or trace ids of W3C Trace Context."""

import hashlib
import hmac
from collections.abc import Iterator, Mapping

KEY_CHARACTERS = 32
"""Hexadecimal digits of a key, as of a trace id."""
_HEADERS = ("x-api-key", "api-key")


def trajectory_key(secret: bytes, epoch: int, step: int, prompt: int, sample: int) -> str:
    """Return the key of a sample in one attempt; no other attempt derives the same key."""
    name = f"{epoch}/{step}/{prompt}/{sample}".encode()
    return hmac.new(secret, name, hashlib.sha256).hexdigest()[:KEY_CHARACTERS]


def keys_of_request(headers: Mapping[str, str]) -> Iterator[str]:
    """Yield what may be a key: bearer token, API key headers, and the trace id of `traceparent`."""
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        yield token.strip()
    yield from (headers[name] for name in _HEADERS if name in headers)
    fields = headers.get("traceparent", "").split("-")
    if len(fields) >= 4:
        yield fields[1]
