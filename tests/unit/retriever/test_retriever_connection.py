"""Requests that are too large before the token is checked, sent to a retriever's process."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from raggrpo_api.names import ENV_RETRIEVER_TOKEN
from support.builders.data.rows import write_rows
from support.processes.waiting import wait_for

TOKEN = "secret-of-this-test"
MAX_GROWTH_BYTES = 64 * 2**20
TIMEOUT_SECONDS = 20
HEAD = b" HTTP/1.1\r\nHost: 127.0.0.1\r\n"
LINES = b"X: " + b"y" * 60 + b"\r\n"
BODY = b'{"query": "shared"}'
AUTHORIZED = b"Authorization: Bearer " + TOKEN.encode() + b"\r\nContent-Length: 19\r\n\r\n" + BODY
ONE_CHUNK = HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"


@dataclass(frozen=True)
class Retriever:
    """A running retriever with a token."""

    pid: int
    port: int
    log: Path

    def is_healthy(self) -> bool:
        return httpx.get(f"http://127.0.0.1:{self.port}/healthz").status_code == 200

    def memory(self, name: str) -> int:
        """Return a memory figure of /proc in bytes."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

    def reset_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")


@pytest.fixture(scope="module")
def retriever(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Retriever]:
    folder = tmp_path_factory.mktemp("retriever")
    corpus = write_rows(folder / "corpus.jsonl", [{"id": "1", "contents": "shared"}])
    port_file, log = folder / "port", folder / "log"
    command = [sys.executable, "-m", "raggrpo_retriever", "--corpus", str(corpus)]
    with log.open("w") as errors:
        process = subprocess.Popen(
            [*command, "--port-file", str(port_file)],
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=os.environ | {ENV_RETRIEVER_TOKEN: TOKEN},
        )
    try:
        wait_for(port_file.exists)
        running = Retriever(process.pid, int(port_file.read_text()), log)
        wait_for(running.is_healthy)
        yield running
    finally:
        process.kill()
        process.wait()


def is_disconnected(port: int, start: bytes, block: bytes, total: int) -> bool:
    """Send a start and `total` bytes of blocks; return whether the server ends the connection."""
    block *= 2**20 // len(block)
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS) as connection:
        try:
            connection.sendall(start)
            for _ in range(0, total, len(block)):
                connection.sendall(block)
            while connection.recv(2**16):
                pass
        except ConnectionError:
            pass
        except TimeoutError:
            return False
        return True


@pytest.mark.parametrize(
    ("start", "block"),
    [
        pytest.param(b"GET /retrieve" + HEAD, LINES, id="header lines"),
        pytest.param(b"GET /retrieve" + HEAD + b"X: ", b"y", id="one header line"),
        pytest.param(b"GET /", b"y", id="path"),
        pytest.param(b"POST /healthz" + ONE_CHUNK + b"0\r\n", LINES, id="trailers"),
        pytest.param(b"POST /healthz" + ONE_CHUNK + b"1;x=", b"y", id="chunk extension"),
        pytest.param(b"", b"GET /retrieve" + HEAD + b"\r\n", id="pipelined requests"),
        pytest.param(b"", b"POST /retrieve" + HEAD + AUTHORIZED, id="pipelined queries"),
    ],
)
def test_requests_without_end_are_disconnected(
    retriever: Retriever, start: bytes, block: bytes
) -> None:
    before = retriever.memory("VmRSS")
    retriever.reset_peak()

    assert is_disconnected(retriever.port, start, block, 96 * 2**20)
    assert retriever.memory("VmHWM") - before < MAX_GROWTH_BYTES
    assert retriever.is_healthy()
    assert "Traceback" not in retriever.log.read_text()


def test_malformed_chunk_of_request_without_token_has_one_response(retriever: Retriever) -> None:
    with socket.create_connection(("127.0.0.1", retriever.port), TIMEOUT_SECONDS) as connection:
        connection.sendall(b"POST /retrieve" + ONE_CHUNK + b"odd\r\n")
        assert connection.recv(2**16).startswith(b"HTTP/1.1 400 ")
    assert retriever.is_healthy()
    assert "Traceback" not in retriever.log.read_text()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"odd\r\n\r\n", id="malformed"),
        pytest.param(b"GET /" + b"y" * 2**17, id="too large"),
    ],
)
def test_malformed_request_after_a_complete_response_gets_400(
    retriever: Retriever, data: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", retriever.port), TIMEOUT_SECONDS) as connection:
        connection.sendall(b"GET /healthz" + HEAD + b"\r\n")
        response = b""
        while b'{"status":"ok"}' not in response:
            response += connection.recv(2**16)
        connection.sendall(data)
        assert connection.recv(2**16).startswith(b"HTTP/1.1 400 ")
    assert retriever.is_healthy()
    assert "Traceback" not in retriever.log.read_text()


def test_head_below_limit_is_read(retriever: Retriever) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}", "X": "y" * 50_000}
    url = f"http://127.0.0.1:{retriever.port}/retrieve"
    assert httpx.post(url, json={"query": "shared"}, headers=headers).status_code == 200


def test_body_has_no_limit_of_heads(retriever: Retriever) -> None:
    url = f"http://127.0.0.1:{retriever.port}/retrieve"
    body = {"query": "shared", "other": "y" * 2**20}
    answer = httpx.post(url, json=body, headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer.json()["result"][0][0]["id"] == "1"


def test_request_to_change_to_websockets_requires_the_token(retriever: Retriever) -> None:
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }
    answer = httpx.get(f"http://127.0.0.1:{retriever.port}/retrieve", headers=headers)
    assert answer.status_code == 401
