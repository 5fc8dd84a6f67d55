"""Servers that send heads and bodies slowly, endlessly or in pieces of one byte."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from huggingface_hub import close_session, constants

from raggrpo_api import foreign_bodies
from raggrpo_api.fields.source import BucketSource, HttpsSource, HubSource, Scheme
from raggrpo_api.trainer.staging import SourceRole, StagingReason
from raggrpo_buckets import responses
from raggrpo_staging.buckets import BucketRemote
from raggrpo_staging.failures import StagingFailed
from raggrpo_staging.hub import HubRemote
from raggrpo_staging.remote import Remote, RemoteFile
from raggrpo_staging.web import WebRemote
from support.servers.hub_server import HubHandler, HubServer
from support.servers.private_authority import Certificate, make_certificate

SECONDS = 0.5
FILE = RemoteFile("config.json", "bucket/config.json", 10**9, None)
Opened = tuple[HubServer, Remote]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("authority"))


@pytest.fixture(params=["web", "hub", "s3", "gs"])
def opened(
    request: pytest.FixtureRequest, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Opened]:
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate.authority))
    with HubServer(certificate if request.param == "web" else None) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        close_session()
        remotes: dict[str, Callable[[], Remote]] = {
            "web": lambda: WebRemote(
                HttpsSource(server.url.removeprefix("https://"), "config.json"), SourceRole.DATA
            ),
            "hub": lambda: HubRemote(HubSource("org/name"), SourceRole.MODEL),
            "s3": lambda: BucketRemote(BucketSource(Scheme.S3, "bucket", ""), SourceRole.MODEL),
            "gs": lambda: BucketRemote(BucketSource(Scheme.GS, "bucket", ""), SourceRole.MODEL),
        }
        yield server, remotes[request.param]()


def failure(opened: Opened, pieces: Iterator[bytes], pause: float = 0.0) -> StagingFailed:
    """Return the failure of the download of a file that is sent in these pieces."""

    def answer(handler: HubHandler) -> bool:
        if "config.json" not in handler.path:
            handler.answer(404, {})
            return True
        handler.close_connection = True
        with suppress(OSError):
            for piece in pieces:
                handler.wfile.write(piece)
                handler.wfile.flush()
                time.sleep(pause)
        return True

    server, remote = opened
    server.faults.append(answer)
    started = time.monotonic()
    with pytest.raises(StagingFailed) as raised:
        list(remote.chunks(FILE, 0, 2**24))
    assert time.monotonic() - started < 30
    assert sum("config.json" in each for each in server.requests) == 1
    assert any(name in str(raised.value) for name in ("127.0.0.1", "localhost"))
    return raised.value


HEAD = (
    b"HTTP/1.1 206 Partial Content\r\nContent-Type: text/plain\r\n"
    b"Content-Range: bytes 0-16777215/1000000000\r\n"
)


def test_dripping_body_is_limited(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_bodies, "PROGRESS_SECONDS", SECONDS)

    def pieces() -> Iterator[bytes]:
        yield HEAD + b"Content-Length: 16777216\r\n\r\n"
        for _ in range(10_000):
            yield b"x"

    problem = failure(opened, pieces(), 0.01)
    assert "bytes of a response in" in str(problem)
    assert problem.reason is StagingReason.UNREACHABLE


def test_dripping_head_is_limited(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (foreign_bodies, responses):
        monkeypatch.setattr(module, "MAX_HEAD_SECONDS", SECONDS)

    def pieces() -> Iterator[bytes]:
        yield HEAD + b"X-Header: "
        for _ in range(10_000):
            yield b"x"

    problem = failure(opened, pieces(), 0.01)
    assert "did not complete the headers of a response within" in str(problem)
    assert problem.reason is StagingReason.UNREACHABLE


def test_endless_interim_responses_are_limited(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses, "MAX_HEAD_SECONDS", SECONDS)

    def pieces() -> Iterator[bytes]:
        while True:
            yield b"HTTP/1.1 100 Continue\r\n\r\n" * 100

    problem = failure(opened, pieces())
    limits = ("bytes before the body of a response", "did not complete the headers of a response")
    assert any(each in str(problem) for each in limits)


def test_chunks_of_one_byte_are_limited(opened: Opened) -> None:
    def pieces() -> Iterator[bytes]:
        yield HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
        while True:
            yield b"1\r\nx\r\n" * 10_000

    problem = failure(opened, pieces())
    assert "in chunks of less than 64 bytes" in str(problem)
    assert problem.reason is StagingReason.UNSUITABLE_CONTENT
