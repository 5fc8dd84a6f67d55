import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest

from raggrpo_api.trainer.progress import Progress, Stage
from raggrpo_operator.http_api import HttpApi, open_session
from raggrpo_operator.progress_client import ProgressClient
from raggrpo_trainer.progress.progress_actor import listen_host
from raggrpo_trainer.progress.progress_server import ProgressServer
from support.processes.ports import free_port

PROGRESS = Progress(attempt=1, stage=Stage.TRAINING, step=3)


@contextmanager
def serving(
    token: str = "",
    dump_stacks: Callable[[], list[int]] = list,
    stop_driver: Callable[[], bool] = bool,
    host: str | None = "127.0.0.1",
) -> Iterator[tuple[ProgressServer, httpx.Client]]:
    server = ProgressServer(
        0 if host else free_port(),
        host=host,
        token=token,
        dump_stacks=dump_stacks,
        stop_driver=stop_driver,
    )
    try:
        address = f"http://127.0.0.1:{server.port}"
        with httpx.Client(base_url=address, trust_env=False) as http:
            yield server, http
    finally:
        server.close()


@pytest.mark.parametrize("head", [b"no HTTP\r\n\r\n", b"GET /" + b"x" * 2**14, b"A: b\r\n" * 300])
def test_malformed_request_leaves_no_error_in_log(
    head: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with serving() as (server, http):
        with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
            connection.sendall(b"GET /progress HTTP/1.1\r\n" + head)
            assert connection.recv(1024).startswith(b"HTTP/1.0 400 ")
        assert http.get("/progress").status_code == 503
    assert all(record.exc_info is None for record in caplog.records)


def test_progress_is_unavailable_before_first_update() -> None:
    with serving() as (_, http):
        assert http.get("/progress").status_code == 503
        assert http.get("/metrics").status_code == 503


async def test_operator_client_reads_newest_progress() -> None:
    with serving() as (server, _):
        server.update(PROGRESS.model_dump_json(by_alias=True).encode(), b"")
        newer = PROGRESS.model_copy(update={"step": 4})
        server.update(newer.model_dump_json(by_alias=True).encode(), b"")
        async with open_session() as session:
            api = HttpApi(session, f"http://127.0.0.1:{server.port}")
            progress = await ProgressClient(api).read()

        assert progress == newer


def test_metrics_are_served_as_prometheus_text() -> None:
    with serving() as (server, http):
        server.update(b"{}", b'raggrpo_step{job="demo"} 3.0\n')
        answer = http.get("/metrics")
        assert answer.text == 'raggrpo_step{job="demo"} 3.0\n'
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "secret"}, 401),
        ({"Authorization": "Bearer secret"}, 200),
    ],
)
@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/progress"), ("POST", "/stacks"), ("POST", "/stop")]
)
def test_token_is_required_on_all_paths_except_metrics(
    method: str, path: str, headers: dict[str, str], status: int
) -> None:
    dumped: list[str] = []

    def dump() -> list[int]:
        dumped.append(path)
        return []

    with serving(token="secret", dump_stacks=dump) as (server, http):
        server.update(b"{}", b"")

        assert http.request(method, path, headers=headers).status_code == status
        assert bool(dumped) == (status == 200 and path == "/stacks")


@pytest.mark.parametrize(
    ("node", "token", "host"),
    [("127.0.0.1", "t", "127.0.0.1"), ("10.0.0.7", "t", None), ("10.0.0.7", "", "127.0.0.1")],
)
def test_progress_server_listens_on_all_addresses_only_in_cluster_with_token(
    node: str, token: str, host: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: node)
    assert listen_host(token) == host


@pytest.mark.parametrize(("host", "status"), [(None, 200), ("127.0.0.1", 401)])
def test_metrics_require_token_on_loopback_only(host: str | None, status: int) -> None:
    with serving(token="secret", host=host) as (server, http):
        server.update(b"{}", b"raggrpo_step 3.0\n")
        assert http.get("/metrics").status_code == status


@pytest.mark.parametrize(("host", "status"), [(None, 200), ("127.0.0.1", 421)])
def test_host_must_be_loopback_address_on_loopback_only(host: str | None, status: int) -> None:
    with serving(token="secret", host=host) as (server, http):
        server.update(b"{}", b"")
        headers = {"Authorization": "Bearer secret", "Host": "rebound.example"}
        assert http.get("/progress", headers=headers).status_code == status


@pytest.mark.row("B13")
def test_stacks_request_returns_signaled_processes() -> None:
    with serving(dump_stacks=lambda: [11, 12]) as (_, http):
        assert http.post("/stacks").json() == {"asked": [11, 12]}


def test_port_zero_is_rejected_for_all_addresses() -> None:
    with pytest.raises(ValueError, match="requires a host"):
        ProgressServer(0, host=None)


def test_port_in_use_raises_without_leftover_thread() -> None:
    with serving() as (server, _):
        before = threading.active_count()
        with pytest.raises(OSError, match=r"address already in use|Address already in use"):
            ProgressServer(server.port)
        assert threading.active_count() == before


def test_progress_server_close_stops_thread_and_frees_port() -> None:
    before = threading.active_count()
    with serving() as (server, _):
        port = server.port
    assert threading.active_count() == before
    ProgressServer(port).close()
