"""Addresses to which no redirect may lead, because clouds serve credentials there."""

import ipaddress
from typing import Final

METADATA_HOSTS: Final = frozenset(
    {"100.100.100.200", "192.0.0.192", "fd00:ec2::254", "metadata", "metadata.google.internal"}
)
"""Metadata services of clouds that are not at link-local addresses."""


def is_link_local(host: str) -> bool:
    """Return whether a host is a link-local address or a metadata service; resolves no names."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host.lower().rstrip(".") in METADATA_HOSTS
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    return address.is_link_local or str(address) in METADATA_HOSTS
