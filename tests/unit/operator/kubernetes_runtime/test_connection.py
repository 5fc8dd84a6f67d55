import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import kopf
import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer
from aiohttp.typedefs import Handler
from yarl import URL

from raggrpo_api import names
from raggrpo_operator.kube.client import Manifest
from raggrpo_operator.kube.cluster_objects import JobKey
from raggrpo_operator.kubernetes_runtime.watching.caches import Caches
from raggrpo_operator.kubernetes_runtime.watching.connection import connect

HUGE = "x" * 100_000
CONTEXT = {"logger": logging.getLogger(), "settings": kopf.OperatorSettings()}
KEY = JobKey("team", "a")


def identity(uid: str) -> Manifest:
    labels = {names.LABEL_JOB: KEY.name}
    return {"name": uid, "namespace": "team", "uid": uid, "labels": labels, "resourceVersion": uid}


async def make_list(request: web.Request) -> web.Response:
    """Answer with two pages, each with one object."""
    uid, more = ("2", "") if "continue" in request.query else ("1", "next")
    items = [{"metadata": identity(uid), "data": {"text": HUGE}}]
    kind = request.match_info["kind"]
    return web.json_response({"kind": kind, "items": items, "metadata": {"continue": more}})


async def make_watch(request: web.Request) -> web.StreamResponse:
    kind = request.match_info["kind"].removesuffix("List")
    event = {"type": "ADDED", "object": {"kind": kind, "metadata": identity("7"), "data": HUGE}}
    answer = web.StreamResponse()
    await answer.prepare(request)
    lines = json.dumps(event).encode() + b"\n"
    for part in (lines[:5], lines[5:] + lines[:50_000], lines[50_000:]):
        await answer.write(part)
    odd = {"kind": kind, "metadata": identity("8"), "spec": {"containers": None}}
    for kind_of_event, body in (("BOOKMARK", odd), ("ADDED", odd | {"spec": "?", "kind": "Pod"})):
        await answer.write(json.dumps({"type": kind_of_event, "object": body}).encode() + b"\n")
    return answer


@dataclass
class Connected:
    """A server, kopf's session, and the caches it fills."""

    url: Callable[[str], URL]
    session: aiohttp.ClientSession
    caches: Caches
    events_seen: list[tuple[str, str]]

    async def read(self, page: str) -> Manifest:
        async with self.session.get(self.url(page)) as answer:
            body: Manifest = await answer.json()
            return body


@asynccontextmanager
async def connected(
    handler: Handler, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Connected]:
    """Yield a session of kopf with a server that answers with `handler`."""
    app = web.Application()
    app.router.add_get("/{kind}", handler)
    caches, events_seen = Caches(1), list[tuple[str, str]]()
    caches.on_event = lambda event_type, body: events_seen.append(
        (event_type, body["metadata"]["uid"])
    )
    async with TestServer(app) as server:
        monkeypatch.setenv("KUBECONFIG", str(make_kubeconfig(folder, str(server.make_url("/")))))
        login = await connect(caches, **CONTEXT)
        assert login is not None
        async with login.aiohttp_session as session:
            yield Connected(server.make_url, session, caches, events_seen)


@pytest.mark.row("E10")
async def test_list_response_fills_caches_and_reaches_kopf_without_items(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(make_list, tmp_path, monkeypatch) as client:
        gone = {"kind": "ConfigMap", "metadata": identity("0")}
        client.caches.apply_event("/ConfigMapList", "ADDED", gone)
        first = await client.read("/ConfigMapList?limit=1")
        assert first == {"kind": "ConfigMapList", "items": [], "metadata": {"continue": "next"}}
        await client.read("/ConfigMapList?limit=1&continue=next")

        cached = list(client.caches.objects.config_maps[KEY])
        assert [each["metadata"]["uid"] for each in cached] == ["1", "2"]
        assert len(json.dumps(cached)) < 1000
    assert client.events_seen == [
        ("ADDED", "0"),
        ("LISTED", "1"),
        ("LISTED", "2"),
        ("VANISHED", "0"),
    ]


async def test_restarted_list_discards_earlier_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists = iter([["1"], ["2"], ["2"]])

    async def changing(request: web.Request) -> web.Response:
        items = [{"metadata": identity(uid)} for uid in next(lists)]
        more = {"metadata": {"continue": "" if "continue" in request.query else "next"}}
        return web.json_response({"kind": "PodList", "items": items, **more})

    async with connected(changing, tmp_path, monkeypatch) as client:
        for page in ("", "", "?continue=next"):
            await client.read(f"/PodList{page}")

    assert client.events_seen[-1] == ("VANISHED", "1")


async def test_lists_of_other_kinds_are_passed_to_kopf_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(make_list, tmp_path, monkeypatch) as client:
        listed = await client.read("/TheirList")

    assert listed["items"][0]["data"] == {"text": HUGE}
    assert client.events_seen == []


async def test_malformed_object_does_not_abort_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def odd_pods(request: web.Request) -> web.Response:
        items = [{"metadata": identity("1"), "spec": "?"}, {"metadata": identity("2")}]
        return web.json_response({"kind": "PodList", "items": items, "metadata": {}})

    async with connected(odd_pods, tmp_path, monkeypatch) as client:
        await client.read("/PodList")

    assert client.events_seen == [("LISTED", "1"), ("LISTED", "2")]


async def test_error_response_is_passed_to_kopf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(request: web.Request) -> web.Response:
        return web.Response(status=500, content_type="application/json")

    async with connected(nothing, tmp_path, monkeypatch) as client:
        assert await client.read("/PodList") is None


@pytest.mark.parametrize(("kind", "is_ours"), [("ConfigMapList", True), ("TheirList", False)])
async def test_watch_events_of_cached_kinds_fill_caches_and_reach_kopf_as_bookmarks(
    kind: str, is_ours: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        connected(make_watch, tmp_path, monkeypatch) as client,
        client.session.get(client.url(f"/{kind}?watch=true")) as answer,
    ):
        lines = [line async for line in answer.content.iter_chunked(2**20)]

    events = [json.loads(line) for line in b"".join(lines).splitlines()]
    versions = [each["object"]["metadata"]["resourceVersion"] for each in events]
    assert versions == ["7", "7", "8", "8"]
    others = [] if is_ours else ["ADDED", "ADDED"]
    assert [each["type"] for each in events if each["type"] != "BOOKMARK"] == others
    assert (len(b"".join(lines)) < 1000) is is_ours
    assert client.events_seen == ([("ADDED", "7")] * 2 if is_ours else []) + [("ADDED", "8")]


async def test_connect_returns_none_without_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))

    assert await connect(Caches(1), **CONTEXT) is None


def make_kubeconfig(folder: Path, server: str) -> Path:
    file = folder / "kubeconfig"
    named = {
        "clusters": [{"name": "a", "cluster": {"server": server}}],
        "users": [{"name": "a", "user": {"token": "t"}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
    }
    file.write_text(yaml.safe_dump({"current-context": "a", **named}))
    return file
