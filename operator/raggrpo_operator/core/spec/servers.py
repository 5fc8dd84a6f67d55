"""Servers that the pods of a job call, as named in its spec."""

from collections.abc import Iterator
from ipaddress import ip_address
from urllib.parse import urlsplit

from raggrpo_api.fields.reach import Server
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.spec.resources import EnvVar

from .marked_fields import marked_values

HTTP_PORT, HTTPS_PORT = 80, 443
AGENT = "spec.rollout.agent.container"
"""Block whose servers are called by the container of an agent only."""
Address = tuple[str, int]
"""Host and port; host "" is any host outside the cluster."""


def servers(spec: JobSpec) -> Iterator[Address]:
    """Yield the address of each server that trainer and retrievers call."""
    yield from _servers(spec, of_agent=False)


def agent_servers(spec: JobSpec) -> Iterator[Address]:
    """Yield the address of each server that the container of an agent calls."""
    yield from _servers(spec, of_agent=True)


def _servers(spec: JobSpec, *, of_agent: bool) -> Iterator[Address]:
    for path, marker, value in marked_values(spec, Server):
        is_called = path.startswith(f"{AGENT}.") == of_agent
        if is_called and (address := server_address(marker.url or value)):
            yield address


def server_address(url: str) -> Address | None:
    """Return the address in a URL, or None if the URL is a folder or invalid."""
    if url.startswith(("s3:", "gs:", "hf:")):
        return "", HTTPS_PORT
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:  # the trainer cannot call an invalid URL either
        return None
    if not host:
        return None
    return host.rstrip("."), port or (HTTP_PORT if parts.scheme == "http" else HTTPS_PORT)


def variable_address(variable: EnvVar) -> Address | None:
    """Return the address of the proxy or server outside the pod in a variable, or None."""
    is_proxy = variable.name.lower().endswith("_proxy") and variable.name.lower() != "no_proxy"
    url = variable.value
    if "://" not in url:
        url = f"http://{url}" if is_proxy and url else ""
    address = server_address(url)
    return None if address and _is_in_pod(address[0]) else address


def _is_in_pod(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
