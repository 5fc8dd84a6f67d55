"""kopf's connection to the API server, which stores lists and events in the caches.

kopf itself receives only resource versions. If kopf received whole objects, it would keep them in
memory until all kinds are listed, and would run a task per event, which takes a quarter of the CPU
time of starting a job.
"""

import json
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any, ClassVar

import aiohttp
import kopf

from .caches import KINDS, Caches

LISTS = frozenset(f"{kind}List" for kind in KINDS)


class _Events:
    """The response body of a watch, with one event per line."""

    def __init__(self, content: aiohttp.StreamReader, path: str, caches: Caches) -> None:
        self._content = content
        self._path = path
        self._caches = caches

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)  # other attributes that aiohttp uses

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        rest = b""
        async for chunk in self._content.iter_chunked(size):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield self._consume(line) + b"\n"
        if rest:
            yield self._consume(rest)

    def _consume(self, line: bytes) -> bytes:
        """Apply an event to the caches; return a bookmark with its resource version for kopf."""
        if not line.strip():
            return line
        event = json.loads(line)
        body = event["object"]
        if event["type"] == "BOOKMARK" or body.get("kind") not in KINDS:
            return line
        self._caches.apply_event(self._path, event["type"], body)
        version = {"resourceVersion": body["metadata"]["resourceVersion"]}
        return json.dumps({"type": "BOOKMARK", "object": {"metadata": version}}).encode()


class _Response(aiohttp.ClientResponse):
    caches: ClassVar[Caches]

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        await super().start(connection)
        if self.url.query.get("watch") == "true" and self.status == HTTPStatus.OK:
            self.content = _Events(self.content, self.url.path, self.caches)  # type: ignore[assignment]
        return self

    async def json(self, **options: Any) -> Any:
        body = await super().json(**options)
        if isinstance(body, dict) and body.get("kind") in LISTS:
            kind = body["kind"].removesuffix("List")
            self.caches.apply_page(
                self.url.path,
                kind,
                [{"kind": kind, **each} for each in body["items"]],
                is_first="continue" not in self.url.query,
                is_last=not body["metadata"].get("continue"),
            )
            body["items"] = []
        return body


async def connect(caches: Caches, **context: Any) -> kopf.AiohttpSession | None:
    """Return a session with credentials of the pod or a kubeconfig, or None without credentials."""
    login = kopf.login_with_service_account(**context) or kopf.login_with_kubeconfig(**context)
    if login is None:
        return None
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=login.as_ssl_context()),
        headers=login.as_http_headers(),
        response_class=type("Response", (_Response,), {"caches": caches}),
        proxy=login.proxy_url,
        trust_env=login.trust_env,
    )
    return kopf.AiohttpSession(
        aiohttp_session=session,
        server=login.server,
        default_namespace=login.default_namespace,
        priority=login.priority,
        expiration=login.expiration,
    )
