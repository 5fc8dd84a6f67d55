"""A web server that redirects to invalid URLs or compresses files."""

import gzip
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from raggrpo_api.fields.source import HttpsSource
from raggrpo_api.trainer.staging import SourceRole, StagedSource, StagingReason
from raggrpo_staging.failures import StagingFailed
from raggrpo_staging.remote import RemoteFile
from raggrpo_staging.web import WebRemote
from support.servers.hub_server import HubHandler, HubServer
from support.servers.private_authority import Certificate, make_certificate


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def web(certificate: Certificate, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate.authority))
    monkeypatch.setenv("NO_PROXY", "*")
    with HubServer(certificate) as server:
        yield server


def open_remote(web: HubServer) -> WebRemote:
    host = web.url.removeprefix("https://")
    return WebRemote(HttpsSource(host, "rows.jsonl"), SourceRole.DATA)


@pytest.mark.parametrize(
    "target",
    ["https://" + "a" * 70 + ".b/", "https://[", "https://host.example.com:abc/", "https:///x"],
)
def test_redirect_to_invalid_url_is_reported(web: HubServer, target: str) -> None:
    web.fail_once("HEAD", 302, {"Location": target})
    with pytest.raises(StagingFailed):
        open_remote(web).snapshot("")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("http://127.0.0.1:1/rows", "redirects to a URL that is not https"),
        ("file:///etc/passwd", "redirects to an invalid URL"),
        ("https://169.254.169.254/latest", "redirects to 169.254.169.254, a link-local address"),
        ("//169%2e254.169.254/latest", "redirects to 169.254.169.254, a link-local address"),
        ("https://2852039166/latest", "redirects to 2852039166, a link-local address"),
        ("https://[::ffff:a9fe:a9fe]/", "a link-local address"),
        ("https://100.100.100.200/", "metadata service"),
        ("/rows.jsonl", "without end"),
    ],
)
def test_redirect_is_rejected_at_once(web: HubServer, target: str, words: str) -> None:
    web.faults.append(lambda handler: handler.answer(302, {}, {"Location": target}) is None)
    with pytest.raises(StagingFailed, match=words) as raised:
        open_remote(web).snapshot("")
    assert raised.value.reason is StagingReason.UNSUITABLE_CONTENT
    assert web.url.removeprefix("https://") in str(raised.value)


@pytest.mark.parametrize("status", [401, 403])
def test_denial_names_the_server_that_answered(
    web: HubServer, certificate: Certificate, status: int
) -> None:
    with HubServer(certificate) as other:
        other.faults.append(lambda handler: handler.answer(status, {}) is None)
        web.fail_once("HEAD", 302, {"Location": f"{other.url}/rows"})
        with pytest.raises(StagingFailed) as raised:
            open_remote(web).snapshot("")
        host, theirs = (each.url.removeprefix("https://") for each in (web, other))
    assert f"{theirs}, to which {host} redirects, denied access" in str(raised.value)
    assert "NETRC" not in str(raised.value)


def test_tls_failure_names_the_server_of_the_redirect(web: HubServer, tmp_path: Path) -> None:
    with HubServer(make_certificate(tmp_path)) as other:
        web.fail_once("HEAD", 302, {"Location": f"{other.url}/rows"})
        with pytest.raises(StagingFailed) as raised:
            open_remote(web).snapshot("")
        theirs = other.url.removeprefix("https://")
    assert raised.value.reason is StagingReason.TLS_FAILURE
    assert f"the certificate of {theirs} is not trusted" in str(raised.value)


@pytest.mark.parametrize(
    ("sent", "is_requested"),
    [
        ("bytes 2-5/10", True), ("bytes 2-5/*", True), ("bytes 0-3/10", False),
        ("bytes 2-4/10", False), ("bytes 2-6/10", False), ("bytes 2-5/11", False),
        ("bytes */10", False), ("items 2-5/10", False), ("", False), ("x" * 10_000, False),
    ],
)  # fmt: skip
def test_other_range_is_rejected(web: HubServer, sent: str, is_requested: bool) -> None:
    headers = {"Content-Range": sent} if sent else {}
    web.faults.append(lambda handler: handler.answer(206, {}, headers, b"2345") is None)
    file = RemoteFile(path="rows.jsonl", location=f"{web.url}/rows.jsonl", size=10)
    chunks = open_remote(web).chunks(file, 2, 6)
    if is_requested:
        assert b"".join(chunks) == b"2345"
        return
    with pytest.raises(StagingFailed, match="instead of bytes 2-5/10") as raised:
        list(chunks)
    assert raised.value.reason is StagingReason.UNSUITABLE_CONTENT
    assert len(str(raised.value)) < 500


def test_range_instead_of_the_whole_file_is_rejected(web: HubServer) -> None:
    headers = {"Content-Range": "bytes 0-3/10"}
    web.faults.append(lambda handler: handler.answer(206, {}, headers, b"0123") is None)
    file = RemoteFile(path="rows.jsonl", location=f"{web.url}/rows.jsonl", size=None)
    with pytest.raises(StagingFailed, match="instead of the whole file"):
        list(open_remote(web).chunks(file, 0, None))


@pytest.mark.parametrize("length", ["1" + "0" * 15, "1" + "0" * 4400, "-1", "x"])
def test_odd_size_is_reported_or_unknown(web: HubServer, length: str) -> None:
    def answer(handler: HubHandler) -> bool:
        handler.send_response(200)
        handler.send_header("Content-Length", length)
        handler.send_header("Accept-Ranges", "bytes")
        handler.send_header("ETag", '"a"')
        handler.end_headers()
        handler.close_connection = True
        return True

    web.faults.append(answer)
    with suppress(StagingFailed):
        [file] = open_remote(web).snapshot("").files
        assert file.size in (None, 10**15)


def test_compressed_file_is_rejected(web: HubServer) -> None:
    def answer(handler: HubHandler) -> bool:
        headers = {"Content-Encoding": "gzip", "ETag": '"a"'}
        handler.answer(200, {}, headers, gzip.compress(bytes(1000)))
        return True

    web.faults.append(answer)
    remote = open_remote(web)
    [file] = remote.snapshot("").files
    with pytest.raises(StagingFailed, match="Accept-Encoding: identity"):
        list(remote.chunks(file, 0, None))


def test_failure_does_not_show_signed_query(web: HubServer) -> None:
    target = f"{web.url}/rows?X-Signature=0123456789abcdef"

    def answer(handler: HubHandler) -> bool:
        if "X-Signature" in handler.path:
            handler.close_connection = True
            return True
        handler.answer(302, {}, {"Location": target})
        return True

    web.faults.append(answer)
    with pytest.raises(StagingFailed) as raised:
        open_remote(web).snapshot("")
    assert "0123456789abcdef" not in str(raised.value)


@pytest.mark.parametrize("tag", ["a" * 257, "a  b", " a\t", "a\x1b[31mb", "a\x85", "e1", 'W/"1'])
def test_revision_is_recorded_unchanged(web: HubServer, tag: str) -> None:
    headers = {"ETag": f'"{tag}"'}
    web.faults.append(lambda handler: handler.answer(200, {}, headers) is None)
    revision = open_remote(web).snapshot("").revision
    recorded = StagedSource(field="f", path="p", revision=revision, digest="d", bytes=0)
    assert recorded.revision == revision
    assert open_remote(web).snapshot("").revision == revision


def test_empty_entity_tag_is_no_revision(web: HubServer) -> None:
    web.faults.append(lambda handler: handler.answer(200, {}, {"ETag": '""'}) is None)
    with pytest.raises(StagingFailed, match="neither ETag nor Last-Modified"):
        open_remote(web).snapshot("")
