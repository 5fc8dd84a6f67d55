"""A web server that redirects to invalid URLs or compresses files."""

import gzip
from collections.abc import Iterator
from contextlib import suppress

import pytest

from raggrpo_api.fields.source import HttpsSource
from raggrpo_api.trainer.staging import SourceRole, StagedSource
from raggrpo_staging.failures import StagingFailed
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
