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


async def a_list(request: web.Request) -> web.Response:
    """Answer with two pages of an object each."""
    uid, more = ("2", "") if "continue" in request.query else ("1", "next")
    items = [{"metadata": identity(uid), "data": {"text": HUGE}}]
    kind = request.match_info["kind"]
    return web.json_response({"kind": kind, "items": items, "metadata": {"continue": more}})


async def a_watch(request: web.Request) -> web.StreamResponse:
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
    """A server, kopf's session, and what has come of it."""

    url: Callable[[str], URL]
    session: aiohttp.ClientSession
    caches: Caches
    vanished: list[Manifest]


@asynccontextmanager
async def connected(
    handler: Handler, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Connected]:
    """Yield a server that answers thus, and kopf's session."""
    app = web.Application()
    app.router.add_get("/{kind}", handler)
    caches, vanished = Caches(1), list[Manifest]()
    async with TestServer(app) as server:
        monkeypatch.setenv("KUBECONFIG", str(a_kubeconfig(folder, str(server.make_url("/")))))
        found = await connect(caches, vanished.append, **CONTEXT)
        assert found is not None
        async with found.aiohttp_session as session:
            yield Connected(server.make_url, session, caches, vanished)


@pytest.mark.parametrize(("kind", "is_trimmed"), [("ConfigMapList", True), ("TheirList", False)])
async def test_lists_are_trimmed_before_kopf_keeps_them(
    kind: str, is_trimmed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        connected(a_list, tmp_path, monkeypatch) as to,
        to.session.get(to.url(f"/{kind}")) as answer,
    ):
        listed = await answer.json()

    assert listed["items"][0]["metadata"]["name"] == "1"
    assert (len(json.dumps(listed)) < 1000) is is_trimmed


async def test_the_pages_of_a_list_fill_the_caches_and_tell_what_has_vanished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(a_list, tmp_path, monkeypatch) as to:
        gone = {"kind": "ConfigMap", "metadata": identity("0")}
        to.caches.event("/ConfigMapList", "ConfigMap", "ADDED", gone)
        for page in ("", "&continue=next"):
            assert to.vanished == []
            async with to.session.get(to.url(f"/ConfigMapList?limit=1{page}")) as answer:
                await answer.json()

        found = [each["metadata"]["uid"] for each in to.caches.objects.config_maps[KEY]]
        assert (found, to.vanished) == (["1", "2"], [gone])


async def test_an_object_that_cannot_be_read_ends_no_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def odd_pods(request: web.Request) -> web.Response:
        items = [{"metadata": identity("1"), "spec": "?"}, {"metadata": identity("2")}]
        return web.json_response({"kind": "PodList", "items": items, "metadata": {}})

    async with (
        connected(odd_pods, tmp_path, monkeypatch) as to,
        to.session.get(to.url("/PodList")) as answer,
    ):
        listed = await answer.json()

    assert [each["metadata"]["uid"] for each in listed["items"]] == ["1", "2"]


@pytest.mark.parametrize(("kind", "is_trimmed"), [("ConfigMapList", True), ("TheirList", False)])
async def test_events_are_trimmed_before_kopf_keeps_them(
    kind: str, is_trimmed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        connected(a_watch, tmp_path, monkeypatch) as to,
        to.session.get(to.url(f"/{kind}?watch=true")) as answer,
    ):
        lines = [line async for line in answer.content.iter_chunked(2**20)]

    events = [json.loads(line) for line in b"".join(lines).splitlines()]
    versions = [each["object"]["metadata"]["resourceVersion"] for each in events]
    assert versions == ["7", "7", "8", "8"]
    assert (len(b"".join(lines)) < 1000) is is_trimmed
    cached = [each["metadata"]["uid"] for each in to.caches.objects.config_maps.get(KEY, ())]
    assert cached == (["7"] if is_trimmed else [])


async def test_without_credentials_kopf_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))

    assert await connect(Caches(1), print, **CONTEXT) is None


def a_kubeconfig(folder: Path, server: str) -> Path:
    file = folder / "kubeconfig"
    named = {
        "clusters": [{"name": "a", "cluster": {"server": server}}],
        "users": [{"name": "a", "user": {"token": "t"}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
    }
    file.write_text(yaml.safe_dump({"current-context": "a", **named}))
    return file
