"""The HTTP client of huggingface_hub, with limits that its default client does not have."""

from collections.abc import Iterator

import httpx2
from huggingface_hub import constants, set_client_factory
from huggingface_hub.utils._http import default_client_factory

from raggrpo_api.foreign_bodies import Reception
from raggrpo_api.secrets.redaction import display_url
from raggrpo_api.trainer.staging import StagingReason

from .bodies import limited, require_plain
from .failures import StagingFailed
from .redirects import require_redirect
from .watched_connections import RECEPTION, WatchedBackend

TIMEOUT_SECONDS = 30.0
"""To connect, and between received bytes."""
MAX_PAGES = 100
"""Pages of a listing."""
_API = "raggrpo.api"
"""Extension of requests to the API of the hub, which redirects retain."""
_URL = "raggrpo.url"
"""Extension of requests: the URL that redirects are relative to, at first that of the hub."""


def use_limited_client() -> None:
    """Make huggingface_hub send its token to the hub only, and limit responses."""
    set_client_factory(_limited_client)


def _limited_client() -> httpx2.Client:
    client = default_client_factory()
    client.headers["Accept-Encoding"] = "identity"
    hooks = client.event_hooks
    client.event_hooks = {
        "request": [*hooks["request"], _prepare],
        "response": [*hooks["response"], _limit_body, _check_redirect, _PageLimit().check],
    }
    for transport in (client._transport, *client._mounts.values()):
        if transport is not None:
            transport._pool._network_backend = WatchedBackend()
    return client


def _prepare(request: httpx2.Request) -> None:
    """Set a timeout, which huggingface_hub disables, and send the token to the hub only.

    Raises StagingFailed if a redirect, or the address that a hub names for an upload, must not be
    used.
    """
    url = str(request.url)
    require_redirect(request.extensions.get(_URL, constants.ENDPOINT), url)
    timeout = httpx2.Timeout(TIMEOUT_SECONDS).as_dict()
    specified = request.extensions.get("timeout", {})
    timeout |= {name: value for name, value in specified.items() if value is not None}
    is_api = request.extensions.get(_API) or url.startswith(_api())
    request.extensions = {**request.extensions, "timeout": timeout, _API: is_api, _URL: url}
    hub = httpx2.URL(constants.ENDPOINT)
    if (request.url.scheme, request.url.netloc) != (hub.scheme, hub.netloc):
        request.headers.pop("Authorization", None)


def _limit_body(response: httpx2.Response) -> None:
    """Require progress of a body, and limit it, unless it is the content of a file."""
    request = response.request
    reception: Reception = response.extensions["network_stream"].get_extra_info(RECEPTION)
    reception.start_body()
    response.stream = _WatchedStream(response.stream, reception)
    if request.extensions[_API] or request.method != "GET" or not response.is_success:
        require_plain(response.headers, hub_address())
        response.encoding = "utf-8"  # a charset such as punycode takes quadratic time
        response.stream = _LimitedStream(response.stream)


def _check_redirect(response: httpx2.Response) -> None:
    """Raise StagingFailed for an invalid URL, which httpx escapes: `[` becomes the host `%5B`."""
    if response.has_redirect_location:
        require_redirect(str(response.request.url), response.headers["Location"])


class _WatchedStream(httpx2.SyncByteStream):  # type: ignore[misc]
    def __init__(self, stream: httpx2.SyncByteStream, reception: Reception) -> None:
        self._stream, self._reception = stream, reception

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._stream:
            self._reception.add_chunk()
            yield chunk

    def close(self) -> None:
        self._stream.close()


class _LimitedStream(httpx2.SyncByteStream):  # type: ignore[misc]
    def __init__(self, stream: httpx2.SyncByteStream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        return limited(self._stream, hub_address())

    def close(self) -> None:
        self._stream.close()


class _PageLimit:
    """Limits the pages of a listing, which a hub may continue without end or on another server."""

    def __init__(self) -> None:
        self._pages = 0

    def check(self, response: httpx2.Response) -> None:
        """Raise StagingFailed if the listing must not be continued."""
        if not (response.request.extensions[_API] and response.is_success):
            return
        following = response.links.get("next", {}).get("url", "")
        self._pages = self._pages + 1 if following else 0
        if following and not following.startswith(_api()):
            problem = f"continues a listing outside of {hub_address()}/api/"
        elif self._pages > MAX_PAGES:
            problem = f"sent a listing of more than {MAX_PAGES:,} pages"
        else:
            return
        raise StagingFailed(
            StagingReason.UNSUITABLE_CONTENT,
            f"{hub_address()} {problem}; correct HF_ENDPOINT or the mirror",
        )


def hub_address() -> str:
    """Return the address of the hub for messages: without the credentials of a mirror."""
    return display_url(constants.ENDPOINT)


def _api() -> str:
    return f"{constants.ENDPOINT}/api/"
