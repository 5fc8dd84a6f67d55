"""kopf's connection to the API server: it fills the caches, and lets through only what they keep.

kopf holds an object that has changed for a while; it may have megabytes that its creator chose.
"""

import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from http import HTTPStatus
from typing import Any, ClassVar

import aiohttp
import kopf

from raggrpo_operator.kube.client import Manifest

from .caches import KINDS, Caches
from .kept import IDENTITY, kept

log = logging.getLogger(__name__)

LISTS = frozenset(f"{kind}List" for kind in KINDS)


class _Events:
    """The body of a watch, one event a line."""

    def __init__(self, content: aiohttp.StreamReader, path: str, caches: Caches) -> None:
        self._content, self._path, self._caches = content, path, caches

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)  # what aiohttp itself asks for

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        rest = b""
        async for chunk in self._content.iter_chunked(size):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield self._trimmed(line) + b"\n"
        if rest:
            yield self._trimmed(rest)

    def _trimmed(self, line: bytes) -> bytes:
        if not line.strip():
            return line
        event = json.loads(line)
        kind = event["object"].get("kind")
        if event["type"] == "BOOKMARK" or kind not in KINDS:
            return line
        event["object"] = _readable(event["object"])
        self._caches.event(self._path, kind, event["type"], event["object"])
        return json.dumps(event).encode()


def _readable(body: Mapping[str, Any]) -> Manifest:
    """Return what is kept of an object; only whose it is if that fails, or kopf would end."""
    try:
        return kept(body)
    except Exception:
        log.exception("a %s cannot be read", body["kind"])
        metadata = {field: body["metadata"].get(field) for field in IDENTITY}
        return {"kind": body["kind"], "metadata": metadata}


class _Response(aiohttp.ClientResponse):
    caches: ClassVar[Caches]
    vanished: ClassVar[Callable[[Manifest], None]]

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        await super().start(connection)
        if self.url.query.get("watch") == "true" and self.status == HTTPStatus.OK:
            self.content = _Events(self.content, self.url.path, self.caches)  # type: ignore[assignment]
        return self

    async def json(self, **options: Any) -> Any:
        found = await super().json(**options)
        if found.get("kind") in LISTS:
            kind = found["kind"].removesuffix("List")
            found["items"] = [_readable({"kind": kind, **each}) for each in found["items"]]
            is_first = "continue" not in self.url.query
            is_last = not found["metadata"].get("continue")
            for gone in self.caches.page(
                self.url.path, kind, found["items"], is_first=is_first, is_last=is_last
            ):
                type(self).vanished(gone)
        return found


async def connect(
    caches: Caches, vanished: Callable[[Manifest], None], **context: Any
) -> kopf.AiohttpSession | None:
    """Return a session with the credentials of the pod or, outside a cluster, of a kubeconfig.

    `vanished` is called with each object that was deleted while no watch was open.
    """
    found = kopf.login_with_service_account(**context) or kopf.login_with_kubeconfig(**context)
    if found is None:
        return None
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=found.as_ssl_context()),
        headers=found.as_http_headers(),
        response_class=type("Response", (_Response,), {"caches": caches, "vanished": vanished}),
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
