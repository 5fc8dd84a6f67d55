import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import kopf
import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer
from aiohttp.typedefs import Handler

from raggrpo_operator.kubernetes_runtime.watching.connection import connect

HUGE = "x" * 100_000
CONTEXT = {"logger": logging.getLogger(), "settings": kopf.OperatorSettings()}


async def a_list(request: web.Request) -> web.Response:
    item = {"metadata": {"name": "theirs", "uid": "1"}, "data": {"text": HUGE}}
    return web.json_response({"kind": request.match_info["kind"], "items": [item]})


async def a_watch(request: web.Request) -> web.StreamResponse:
    metadata = {"name": "theirs", "uid": "1", "resourceVersion": "7"}
    kind = request.match_info["kind"].removesuffix("List")
    event = {"type": "ADDED", "object": {"kind": kind, "metadata": metadata, "data": HUGE}}
    answer = web.StreamResponse()
    await answer.prepare(request)
    lines = json.dumps(event).encode() + b"\n"
    for part in (lines[:5], lines[5:] + lines[:50_000], lines[50_000:]):
        await answer.write(part)
    odd = {"kind": kind, "metadata": {"resourceVersion": "8"}, "spec": {"containers": None}}
    for kind_of_event, body in (("BOOKMARK", odd), ("ADDED", odd | {"spec": "?", "kind": "Pod"})):
        await answer.write(json.dumps({"type": kind_of_event, "object": body}).encode() + b"\n")
    return answer


@asynccontextmanager
async def connected(
    handler: Handler, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[TestServer, aiohttp.ClientSession]]:
    """Yield a server that answers thus, and kopf's session."""
    app = web.Application()
    app.router.add_get("/{kind}", handler)
    async with TestServer(app) as server:
        monkeypatch.setenv("KUBECONFIG", str(a_kubeconfig(folder, str(server.make_url("/")))))
        found = await connect(**CONTEXT)
        assert found is not None
        async with found.aiohttp_session as session:
            yield server, session


@pytest.mark.parametrize(("kind", "is_trimmed"), [("ConfigMapList", True), ("TheirList", False)])
async def test_lists_are_trimmed_before_kopf_keeps_them(
    kind: str, is_trimmed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        connected(a_list, tmp_path, monkeypatch) as (server, session),
        session.get(server.make_url(f"/{kind}")) as answer,
    ):
        listed = await answer.json()

    assert listed["items"][0]["metadata"]["name"] == "theirs"
    assert (len(json.dumps(listed)) < 1000) is is_trimmed


@pytest.mark.parametrize(("kind", "is_trimmed"), [("ConfigMapList", True), ("TheirList", False)])
async def test_events_are_trimmed_before_kopf_keeps_them(
    kind: str, is_trimmed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        connected(a_watch, tmp_path, monkeypatch) as (server, session),
        session.get(server.make_url(f"/{kind}?watch=true")) as answer,
    ):
        lines = [line async for line in answer.content.iter_chunked(2**20)]

    events = [json.loads(line) for line in b"".join(lines).splitlines()]
    versions = [each["object"]["metadata"]["resourceVersion"] for each in events]
    assert versions == ["7", "7", "8", "8"]
    assert (len(b"".join(lines)) < 1000) is is_trimmed


async def test_without_credentials_kopf_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))

    assert await connect(**CONTEXT) is None


def a_kubeconfig(folder: Path, server: str) -> Path:
    file = folder / "kubeconfig"
    named = {
        "clusters": [{"name": "a", "cluster": {"server": server}}],
        "users": [{"name": "a", "user": {"token": "t"}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
    }
    file.write_text(yaml.safe_dump({"current-context": "a", **named}))
    return file
