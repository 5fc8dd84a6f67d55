"""kopf's connection to the API server: what it lists and watches goes into the caches here.

kopf itself sees only how far it has read. It would hold each object until all lists are there, wake
all of them with each, and run a task for every event: a quarter of a begin's processor time.
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
                yield self._taken(line) + b"\n"
        if rest:
            yield self._taken(rest)

    def _taken(self, line: bytes) -> bytes:
        """Take an event of ours; of that kopf is told the version, as by a bookmark."""
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
        found = await super().json(**options)
        if isinstance(found, dict) and found.get("kind") in LISTS:
            kind = found["kind"].removesuffix("List")
            self.caches.apply_page(
                self.url.path,
                kind,
                [{"kind": kind, **each} for each in found["items"]],
                is_first="continue" not in self.url.query,
                is_last=not found["metadata"].get("continue"),
            )
            found["items"] = []
        return found


async def connect(caches: Caches, **context: Any) -> kopf.AiohttpSession | None:
    """Return a session with the credentials of the pod or, outside a cluster, of a kubeconfig."""
    found = kopf.login_with_service_account(**context) or kopf.login_with_kubeconfig(**context)
    if found is None:
        return None
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=found.as_ssl_context()),
        headers=found.as_http_headers(),
        response_class=type("Response", (_Response,), {"caches": caches}),
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
