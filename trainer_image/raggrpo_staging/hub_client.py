"""The HTTP client of huggingface_hub, with limits that its default client does not have."""

import httpx2
from huggingface_hub import constants, set_client_factory
from huggingface_hub.utils._http import default_client_factory

TIMEOUT_SECONDS = 60.0
"""To connect, and between received bytes."""


def use_limited_client() -> None:
    """Make huggingface_hub send its token to the hub only, and not wait forever."""
    set_client_factory(_limited_client)


def _limited_client() -> httpx2.Client:
    client = default_client_factory()
    client.timeout = httpx2.Timeout(TIMEOUT_SECONDS)
    hooks = client.event_hooks
    client.event_hooks = {**hooks, "request": [*hooks["request"], _keep_token_from_others]}
    return client


def _keep_token_from_others(request: httpx2.Request) -> None:
    """Remove the token from a request to another server, such as one that a page links to."""
    hub = httpx2.URL(constants.ENDPOINT)
    if (request.url.scheme, request.url.netloc) != (hub.scheme, hub.netloc):
        request.headers.pop("Authorization", None)
