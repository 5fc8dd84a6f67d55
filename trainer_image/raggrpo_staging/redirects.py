"""Which redirects are followed, and which server answered in the end."""

import socket
from urllib.parse import urljoin, urlsplit

from raggrpo_api.link_local import is_link_local
from raggrpo_api.trainer.staging import StagingReason

from .failures import StagingFailed, causes

_DEFAULT_PORTS = {"http": 80, "https": 443}


def origin(url: str) -> tuple[str, str, int | None]:
    """Return scheme, host and port of a URL. Raises ValueError if it has an invalid port."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or _DEFAULT_PORTS.get(parts.scheme)


def server_of(url: str) -> str:
    """Return host and port of a URL as they are written in it."""
    return urlsplit(url).netloc.rpartition("@")[2]


def is_other_server(url: str, server: str) -> bool:
    """Return whether a URL is not one of `server`, which is a URL, or host and port."""
    return server_of(url).lower() != (server_of(server) or server).lower()


def answering_server(error: BaseException, server: str) -> str:
    """Return the server of the request that an error of a client names, by default `server`."""
    for each in causes(error):
        try:
            url = str(each.request.url)  # type: ignore[attr-defined]
        except (AttributeError, RuntimeError):  # the error does not name a request
            continue
        return server_of(url) if server_of(url) and is_other_server(url, server) else server
    return server


def require_redirect(url: str, target: str) -> None:
    """Raise StagingFailed unless a redirect from `url` may be followed.

    It must neither leave https nor lead to a link-local address, where clouds serve credentials.
    """
    try:
        scheme, host, _ = origin(urljoin(url, target))
    except ValueError:
        scheme = host = ""
    if scheme not in _DEFAULT_PORTS or not host:
        problem = "to an invalid URL"
    elif urlsplit(url).scheme == "https" != scheme:
        problem = "to a URL that is not https"
    elif host != urlsplit(url).hostname and resolves_to_link_local(host):
        problem = f"to {host}, a link-local address or metadata service"
    else:
        return
    raise StagingFailed(
        StagingReason.UNSUITABLE_CONTENT,
        f"{server_of(url)} redirects {problem}; check the address of the server",
    )


def resolves_to_link_local(host: str) -> bool:
    """Return whether a host has a link-local address or that of a metadata service.

    Names that cannot be resolved here are left to the proxy, or to the request, which fails.
    """
    try:
        resolved = {each[4][0] for each in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return False
    return any(is_link_local(str(each)) for each in resolved)


def other_server_denied(url: str, server: str, source: object, status: int) -> StagingFailed:
    """Return the failure if the server that answered is not the one that received the request."""
    return StagingFailed(
        StagingReason.ACCESS_DENIED,
        f"{server_of(url)}, to which {server} redirects, denied access to {source} (HTTP {status});"
        f" check the storage of {server}",
    )
