import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest

from raggrpo_api import names
from raggrpo_retriever.access import Access
from raggrpo_retriever.corpus import Passage
from raggrpo_retriever.index import Bm25Index
from raggrpo_retriever.server import IndexHolder, build_app
from support.builders.data.rows import write_rows
from support.processes.other_user import as_other_user, needs_root
from support.processes.waiting import wait_for

TOKEN = "0123456789abcdef"
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}
QUERY = {"query": "tea"}


def make_client(access: Access) -> httpx.AsyncClient:
    app = build_app(IndexHolder(Bm25Index([Passage("c1", "tea")])), access)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://kb.team.svc:8000")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": TOKEN}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Basic OjAxMjM="}, 401),
        (AUTHORIZED, 200),
    ],
)
async def test_calls_require_token_and_probes_do_not(headers: dict[str, str], status: int) -> None:
    async with make_client(Access(TOKEN)) as client:
        for path, body in (("/retrieve", QUERY), ("/chat", {"context": "tea"})):
            answer = await client.post(path, json=body, headers=headers)
            assert answer.status_code == status, path
            assert TOKEN not in answer.text
        assert (await client.get("/healthz", headers=headers)).status_code == 200


async def test_unknown_paths_require_token() -> None:
    async with make_client(Access(TOKEN)) as client:
        for path in ("/", "/metrics", "/healthz/", "/healthz/../retrieve", "//healthz"):
            assert (await client.get(path)).status_code == 401, path


@pytest.mark.parametrize("host", ["rebound.example", "127.0.0.1.rebound.example", "", "10.0.0.1"])
async def test_local_server_rejects_other_hosts(host: str) -> None:
    async with make_client(Access(TOKEN, is_local=True)) as client:
        for path in ("/retrieve", "/healthz"):
            answer = await client.request(
                "POST", path, json=QUERY, headers=AUTHORIZED | {"Host": host}
            )
            assert answer.status_code == 421, path


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Start a retriever with a token and return its port."""
    folder = tmp_path_factory.mktemp("retriever")
    corpus = write_rows(folder / "corpus.jsonl", [{"id": "1", "contents": "tea"}])
    corpus.chmod(0o600)
    command = [sys.executable, "-m", "raggrpo_retriever", "--corpus", str(corpus)]
    process = subprocess.Popen(
        [*command, "--port-file", str(folder / "port")],
        env=os.environ | {names.ENV_RETRIEVER_TOKEN: TOKEN},
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_for((folder / "port").exists)
        port = int((folder / "port").read_text())
        wait_for(lambda: call(port, {}, "/healthz", "GET") == 200)
        assert TOKEN not in Path(f"/proc/{process.pid}/cmdline").read_text()
        yield port
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def call(port: int, headers: dict[str, str], path: str = "/retrieve", method: str = "POST") -> int:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    with closing(connection):
        connection.request(method, path, json.dumps(QUERY), headers)
        return connection.getresponse().status


def test_owner_with_token_is_served(port: int) -> None:
    assert call(port, AUTHORIZED) == 200


@needs_root
@pytest.mark.row("E6")
def test_other_user_is_rejected_without_token(port: int) -> None:
    assert as_other_user(call, port, {}) == 401
    assert as_other_user(call, port, {}, "/metrics", "GET") == 401


@needs_root
@pytest.mark.row("E6")
def test_rebound_host_name_is_rejected_even_with_token(port: int) -> None:
    assert as_other_user(call, port, AUTHORIZED | {"Host": "rebound.example"}) == 421
