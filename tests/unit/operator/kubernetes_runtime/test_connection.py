import json
import logging
from pathlib import Path

import kopf
import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from raggrpo_operator.kubernetes_runtime.watching.connection import connect

HUGE = "x" * 100_000
CONTEXT = {"logger": logging.getLogger(), "settings": kopf.OperatorSettings()}


async def a_list(request: web.Request) -> web.Response:
    item = {"metadata": {"name": "theirs", "uid": "1"}, "data": {"text": HUGE}}
    return web.json_response({"kind": request.match_info["kind"], "items": [item]})


@pytest.mark.parametrize(("kind", "is_trimmed"), [("ConfigMapList", True), ("TheirList", False)])
async def test_lists_are_trimmed_before_kopf_keeps_them(
    kind: str, is_trimmed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = web.Application()
    app.router.add_get("/{kind}", a_list)
    async with TestServer(app) as server:
        monkeypatch.setenv("KUBECONFIG", str(a_kubeconfig(tmp_path, str(server.make_url("/")))))
        found = await connect(**CONTEXT)
        assert found is not None
        async with (
            found.aiohttp_session as session,
            session.get(server.make_url(f"/{kind}")) as answer,
        ):
            listed = await answer.json()

    assert listed["items"][0]["metadata"]["name"] == "theirs"
    assert (len(json.dumps(listed)) < 1000) is is_trimmed


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
