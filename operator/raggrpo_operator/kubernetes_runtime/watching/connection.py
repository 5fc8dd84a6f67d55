"""kopf's connection to the API server: of objects it lets through only what the caches keep.

kopf holds every object that it has listed until all kinds are listed, and one that has changed for
a while; each may have megabytes that whoever created it chose.
"""

import json
import logging
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any

import aiohttp
import kopf

from raggrpo_operator.kube.client import JOBS

from .kept import CHILDREN, IDENTITY, kept

log = logging.getLogger(__name__)

KINDS = frozenset(each.kind for each in (JOBS, *CHILDREN))
LISTS = frozenset(f"{kind}List" for kind in KINDS)


class _TrimmedEvents:
    """The body of a watch, one event a line."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)  # what aiohttp itself asks for

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        rest = b""
        async for chunk in self._content.iter_chunked(size):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield _trimmed(line) + b"\n"
        if rest:
            yield _trimmed(rest)


def _trimmed(line: bytes) -> bytes:
    if not line.strip():
        return line
    event = json.loads(line)
    whole = event["object"]
    if event["type"] == "BOOKMARK" or whole.get("kind") not in KINDS:
        return line
    try:
        event["object"] = kept(whole)
    except Exception:  # or kopf would end every watch
        log.exception("a %s cannot be read", whole["kind"])
        metadata = {field: whole["metadata"].get(field) for field in IDENTITY}
        event["object"] = {"kind": whole["kind"], "metadata": metadata}
    return json.dumps(event).encode()


class _TrimmedResponse(aiohttp.ClientResponse):
    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        await super().start(connection)
        if self.url.query.get("watch") == "true" and self.status == HTTPStatus.OK:
            self.content = _TrimmedEvents(self.content)  # type: ignore[assignment]
        return self

    async def json(self, **options: Any) -> Any:
        found = await super().json(**options)
        if found.get("kind") in LISTS:
            kind = found["kind"].removesuffix("List")
            found["items"] = [kept({"kind": kind, **each}) for each in found["items"]]
        return found


async def connect(**context: Any) -> kopf.AiohttpSession | None:
    """Return a session with the credentials of the pod or, outside a cluster, of a kubeconfig."""
    found = kopf.login_with_service_account(**context) or kopf.login_with_kubeconfig(**context)
    if found is None:
        return None
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=found.as_ssl_context()),
        headers=found.as_http_headers(),
        response_class=_TrimmedResponse,
        proxy=found.proxy_url,
        trust_env=found.trust_env,
    )
    return kopf.AiohttpSession(
        aiohttp_session=session,
        server=found.server,
        default_namespace=found.default_namespace,
        priority=found.priority,
        expiration=found.expiration,
    )
