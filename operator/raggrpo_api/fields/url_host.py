"""Hosts in URLs. Must not import pydantic, because hooks that exit quickly import this module."""


def url_host(host: str) -> str:
    """Return a host name or address for a URL: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host
