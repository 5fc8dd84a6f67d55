"""A hub that sends unexpected values, endless responses and listings, or the token."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import close_session, constants, get_session

from raggrpo_api.fields.source import HubSource
from raggrpo_api.foreign_bodies import MAX_BODY_BYTES
from raggrpo_api.trainer.staging import SourceRole, StagingReason
from raggrpo_staging import hub as hub_module
from raggrpo_staging import hub_client, selection
from raggrpo_staging.failures import StagingFailed
from raggrpo_staging.hub import HubRemote
from raggrpo_staging.remote import RemoteFile
from support.servers.hub_server import HubHandler, HubServer
from support.servers.private_authority import make_certificate

MODEL = {"config.json": b"{}", "model.safetensors": b"weights"}
SHA = "0123456789" * 4
FILE: dict[str, Any] = {"type": "file", "path": "model.safetensors", "size": 7, "oid": SHA}
INFO = "GET /api/models/org/name/revision"
TREE = "GET /api/models/org/name/tree"
DATA = HubSource("org/name", is_dataset=True, split="train")
Answer = Callable[[HubHandler], object]


@pytest.fixture(autouse=True)
def _endpoint(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setenv("NO_PROXY", "*")
    hub.add("org/name", MODEL)
    hub.add("datasets/org/name", {"README.md": b"text", "data/train.json": b"{}"})
    close_session()


def send(hub: HubServer, pattern: str, answer: Answer) -> None:
    """Respond to requests whose method and path start with a pattern."""

    def fault(handler: HubHandler) -> bool:
        if not f"{handler.command} {handler.path}".startswith(pattern):
            return False
        answer(handler)
        return True

    hub.faults.append(fault)


def failure(source: HubSource = HubSource("org/name")) -> StagingFailed:
    role = SourceRole.DATA if source.is_dataset else SourceRole.MODEL
    with pytest.raises(StagingFailed) as raised:
        HubRemote(source, role).snapshot("")
    return raised.value


def endless(status: int = 200) -> Answer:
    return lambda handler: handler.answer_endlessly(status)


@pytest.mark.parametrize(
    "value",
    [
        [], None, "text", 1, {"id": "org/name"}, {"id": "org/name", "sha": [1]},
        {"id": "org/name", "sha": 5}, {"id": "org/name", "sha": "../../x"},
        {"id": "org/name", "sha": SHA, "siblings": 5},
        {"id": "org/name", "sha": SHA, "lastModified": "soon"},
    ],
)  # fmt: skip
def test_unexpected_description_names_the_hub(hub: HubServer, value: Any) -> None:
    send(hub, INFO, lambda handler: handler.answer(200, value))
    problem = failure()
    assert problem.reason is StagingReason.UNSUITABLE_CONTENT
    assert f"{hub.url} describes hf://org/name in an unexpected format" in str(problem)
    assert "check the address of the server" in str(problem)


@pytest.mark.parametrize(
    "body", [b"<html>", b'{"sha": "\xff\xfe"}', b"[" * 100_000, b'{"sha": ' + b"1" * 5000 + b"}"]
)
def test_description_that_is_not_json_names_the_hub(hub: HubServer, body: bytes) -> None:
    send(hub, INFO, lambda handler: handler.answer(200, None, body=body))
    assert "in an unexpected format" in str(failure())


@pytest.mark.parametrize(
    "value",
    [
        None, "text", 5, {"a": 1}, [{}], [1], [{"path": "a.safetensors", "size": 1}],
        [FILE | {"size": size} for size in ["7"]], [FILE | {"size": True}], [FILE | {"size": 7.5}],
        [FILE | {"size": -5}], [FILE | {"size": []}], [FILE | {"size": 10**30}],
        [FILE | {"path": 5}], [FILE | {"path": None}], [FILE | {"path": ["a"]}],
        [FILE | {"oid": 5}], [FILE | {"oid": "\x1b[2J"}], [FILE | {"lfs": {}}],
        [FILE | {"lfs": [1]}], [FILE | {"lfs": {"oid": 5, "size": 7, "pointerSize": 1}}],
        [FILE | {"lastCommit": 5}],
    ],
)  # fmt: skip
def test_unexpected_listing_names_the_hub(hub: HubServer, value: Any) -> None:
    send(hub, TREE, lambda handler: handler.answer(200, value))
    problem = failure()
    assert problem.reason is StagingReason.UNSUITABLE_CONTENT
    assert "hf://org/name" in str(problem)


@pytest.mark.parametrize("pattern", [INFO, TREE])
@pytest.mark.parametrize("status", [200, 500, 404, 302])
def test_endless_response_is_limited(hub: HubServer, pattern: str, status: int) -> None:
    send(hub, pattern, endless(status))
    assert f"more than {MAX_BODY_BYTES:,} bytes" in str(failure())


def test_slow_response_is_limited(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raggrpo_staging.bodies.MAX_BODY_SECONDS", 0.0)
    problem = failure()
    assert problem.reason is StagingReason.UNREACHABLE
    assert f"{hub.url} did not complete a response" in str(problem)


def test_silent_hub_is_unreachable(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_client, "TIMEOUT_SECONDS", 0.2)
    hub.seconds_per_chunk = 0.0
    send(hub, INFO, lambda handler: handler.connection.recv(1))
    problem = failure()
    assert problem.reason is StagingReason.UNREACHABLE
    assert hub.url in str(problem)


@pytest.mark.parametrize("status", [200, 404])
def test_endless_error_of_file_is_limited(hub: HubServer, status: int) -> None:
    remote = HubRemote(HubSource("org/name"), SourceRole.MODEL)
    file = next(each for each in remote.snapshot("").files if each.path == "config.json")
    send(hub, "GET /org/name/resolve/", endless(status))
    chunks = remote.chunks(file, 0, file.size)
    if status == 200:  # the downloader limits the content of a file
        assert sum(len(next(chunks)) for _ in range(20)) > MAX_BODY_BYTES
        chunks.close()  # type: ignore[attr-defined]
        return
    with pytest.raises(StagingFailed, match="more than"):
        list(chunks)


def test_compressed_response_is_rejected(hub: HubServer) -> None:
    headers = {"Content-Encoding": "gzip"}
    send(hub, INFO, lambda handler: handler.answer(200, {}, headers, b"\x1f\x8b"))
    assert "Accept-Encoding: identity" in str(failure())


def test_endless_card_is_limited(hub: HubServer) -> None:
    send(hub, "GET /datasets/org/name/resolve/", endless())
    assert "more than" in str(failure(DATA))


def test_endless_listing_is_limited(hub: HubServer) -> None:
    def page(handler: HubHandler) -> None:
        handler.answer(200, [], {"Link": f'<{hub.url}{handler.path}>; rel="next"'})

    send(hub, TREE, page)
    assert f"more than {hub_client.MAX_PAGES:,} pages" in str(failure())


def test_number_of_files_is_limited(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (hub_module, selection):
        monkeypatch.setattr(module, "MAX_ENTRIES", 2)
    files = [FILE | {"path": f"{number}.txt"} for number in range(3)]
    send(hub, TREE, lambda handler: handler.answer(200, files))
    assert "more than 2 files" in str(failure())


def test_folders_are_counted_as_files(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (hub_module, selection):
        monkeypatch.setattr(module, "MAX_ENTRIES", 2)
    folders = [{"type": "directory", "path": f"{number}", "oid": SHA} for number in range(2)]
    send(hub, TREE, lambda handler: handler.answer(200, [FILE, *folders]))
    assert "more than 2 files" in str(failure())


@pytest.mark.parametrize("charset", ["punycode", "idna", "undefined"])
def test_charset_of_a_response_is_not_used(hub: HubServer, charset: str) -> None:
    headers = {"Content-Type": f"text/plain; charset={charset}"}
    send(hub, INFO, lambda handler: handler.answer(200, {}, headers, b"a-999"))
    assert get_session().get(f"{hub.url}/api/models/org/name/revision/main").text == "a-999"


@pytest.mark.parametrize(
    "target", ["{theirs}/api/x", "http://[", "file:///etc/passwd", "http://hub.example.com:x/"]
)
def test_listing_continues_on_the_hub_only(hub: HubServer, target: str) -> None:
    with HubServer() as theirs:
        link = {"Link": f'<{target.format(theirs=theirs.url)}>; rel="next"'}
        hub.fail_once(TREE, 200, link)
        problem = failure()
        assert theirs.requests == []
    assert f"continues a listing outside of {hub.url}/api/" in str(problem)


def test_listing_with_two_pages_is_complete(hub: HubServer) -> None:
    first, second = FILE, FILE | {"path": "config.json"}

    def page(handler: HubHandler) -> None:
        link = {"Link": f'<{hub.url}{handler.path}&cursor=1>; rel="next"'}
        is_second = "cursor" in handler.path
        handler.answer(200, [second if is_second else first], {} if is_second else link)

    send(hub, TREE, page)
    snapshot = HubRemote(HubSource("org/name"), SourceRole.MODEL).snapshot("")
    assert {each.path for each in snapshot.files} == {"model.safetensors", "config.json"}


@pytest.mark.parametrize("token", ["hf_abcdefghijklmnopqrstuvwxyz", "token-of-mirror"])
def test_token_in_error_is_hidden(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)

    def echo(handler: HubHandler) -> None:
        received = handler.headers["Authorization"]
        handler.answer(400, {"error": received}, {"X-Error-Message": f"rejected {received}"})

    send(hub, INFO, echo)
    assert token not in str(failure())
    assert "(hidden)" in str(failure())


@pytest.fixture
def secure_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """Serve the model with TLS."""
    certificate = make_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.authority))
    with HubServer(certificate) as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        server.add("org/name", MODEL)
        close_session()
        yield server
    close_session()


@pytest.mark.parametrize("pattern", [INFO, TREE, "GET /org/name/resolve/"])
def test_hub_with_tls_redirects_to_https_only(
    secure_hub: HubServer, hub: HubServer, pattern: str
) -> None:
    target = {"Location": f"{hub.url}/cdn"}
    send(secure_hub, pattern, lambda handler: handler.answer(302, {}, target))
    with pytest.raises(StagingFailed, match="redirects to a URL that is not https") as raised:
        read_model()
    assert raised.value.reason is StagingReason.UNSUITABLE_CONTENT
    assert hub.requests == []


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("http://169.254.169.254/latest", "a link-local address"),
        ("http://[::ffff:169.254.169.254]/", "a link-local address"),
        ("http://169。254。169。254/", "a link-local address"),
        ("file:///etc/passwd", "to an invalid URL"),
        ("http://[", "to an invalid URL"),
        ("http://a:b/", "to an invalid URL"),
        ("http://a\t/", "redirects to one or without end"),
        (".", "without end"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("pattern", [INFO, "GET /org/name/resolve/"])
def test_redirect_is_rejected_at_once(
    hub: HubServer, pattern: str, target: str, words: str
) -> None:
    location = {"Location": target.encode().decode("latin-1")}
    send(hub, pattern, lambda handler: handler.answer(302, {}, location))
    with pytest.raises(StagingFailed, match=words) as raised:
        read_model()
    assert raised.value.reason is StagingReason.UNSUITABLE_CONTENT


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("pattern", [INFO, "GET /org/name/resolve/"])
def test_denial_names_the_server_that_answered(hub: HubServer, status: int, pattern: str) -> None:
    with HubServer() as other:
        other.faults.append(lambda handler: handler.answer(status, {}) is None)
        target = {"Location": f"{other.url}/x"}
        send(hub, pattern, lambda handler: handler.answer(302, {}, target))
        with pytest.raises(StagingFailed) as raised:
            read_model()
        theirs = other.url.removeprefix("http://")
    assert raised.value.reason is StagingReason.ACCESS_DENIED
    assert f"{theirs}, to which {hub.url} redirects, denied access" in str(raised.value)
    assert "HF_TOKEN" not in str(raised.value)


def read_model() -> None:
    remote = HubRemote(HubSource("org/name"), SourceRole.MODEL)
    file = next(each for each in remote.snapshot("").files if each.path == "config.json")
    list(remote.chunks(file, 0, file.size))


def test_many_patterns_of_card_are_rejected(hub: HubServer) -> None:
    paths = [f"a{number}*" for number in range(10_000)]
    configs = [{"default": True, "data_files": [{"split": "train", "path": paths}]}]
    files = {"README.md": f"---\n{json.dumps({'configs': configs})}\n---\n".encode()}
    files |= {f"data/{number}.json": b"{}" for number in range(1000)}
    hub.add("datasets/org/name", files)
    assert "too many" in str(failure(DATA))


def test_slow_patterns_of_card_are_rejected(hub: HubServer) -> None:
    configs = [{"default": True, "data_files": [{"split": "train", "path": f"*{'a' * 200_000}b"}]}]
    files = {"README.md": f"---\n{json.dumps({'configs': configs})}\n---\n".encode()}
    files |= {f"{'a' * 200}{number}.json": b"{}" for number in range(200)}
    hub.add("datasets/org/name", files)
    started = time.process_time()
    assert "are too many; specify a file as hf://datasets/org/name/FILE" in str(failure(DATA))
    assert time.process_time() - started < 5


@pytest.mark.parametrize("size", [-1, True, 7.5, "7", 10**16])
def test_size_of_file_must_be_a_number_of_bytes(size: Any) -> None:
    with pytest.raises(ValueError, match="size"):
        RemoteFile(path="model.safetensors", location="model.safetensors", size=size)
