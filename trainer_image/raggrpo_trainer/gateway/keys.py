"""Keys that name a trajectory to the gateway: API keys, or trace ids of W3C Trace Context."""

from collections.abc import Iterator, Mapping

_HEADERS = ("x-api-key", "api-key")


def keys_of_request(headers: Mapping[str, str]) -> Iterator[str]:
    """Yield possible keys: bearer token, API key headers, and the trace id of `traceparent`."""
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        yield token.strip()
    yield from (headers[name] for name in _HEADERS if name in headers)
    fields = headers.get("traceparent", "").split("-")
    if len(fields) >= 4:
        yield fields[1]
