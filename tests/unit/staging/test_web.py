import hashlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from raggrpo_api.trainer.staging import StagingReason
from support.servers.hub_server import HubHandler, HubServer
from support.servers.private_authority import Certificate, make_certificate
from support.staging import PART_BYTES, Stage, make_data_source, make_model_source

ROWS = random.Random(5).randbytes(4 * PART_BYTES)
SHA = hashlib.sha256(ROWS).hexdigest()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def web(certificate: Certificate) -> Iterator[HubServer]:
    with HubServer(certificate) as server:
        server.add("org/name", {"train.parquet": ROWS})
        yield server


@pytest.fixture
def stage(tmp_path: Path, certificate: Certificate) -> Stage:
    return Stage(tmp_path, {"SSL_CERT_FILE": str(certificate.authority)})


def url(web: HubServer, name: str = "train.parquet") -> str:
    return f"{web.url}/org/name/resolve/main/{name}"


def test_file_is_staged_by_entity_tag(web: HubServer, stage: Stage) -> None:
    first = stage.staged(make_data_source(url(web)))
    assert Path(first.path).read_bytes() == ROWS
    web.add("org/name", {"train.parquet": b"new"})
    second = stage.staged(make_data_source(url(web)))
    assert Path(second.path).read_bytes() == b"new"
    assert first.revision != second.revision


def test_file_with_checksum_is_reused_without_network(web: HubServer, stage: Stage) -> None:
    source = make_data_source(f"{url(web)}#sha256={SHA}")
    first = stage.staged(source)
    web.requests.clear()
    assert stage.staged(source).path == first.path
    assert first.revision == f"sha256:{SHA}"
    assert web.requests == []


def test_wrong_checksum_is_reported(web: HubServer, stage: Stage) -> None:
    failure = stage.failure(make_data_source(f"{url(web)}#sha256={'0' * 64}"))
    assert failure.reason is StagingReason.CHECKSUM_MISMATCH
    assert f"downloaded: {SHA}" in failure.message


def test_server_without_ranges_is_supported(web: HubServer, stage: Stage) -> None:
    def send_all(handler: HubHandler) -> bool:
        if not handler.path.endswith(".parquet"):
            return False
        handler.answer(200, {}, {"ETag": '"a"'}, ROWS)
        return True

    web.faults.append(send_all)
    assert Path(stage.staged(make_data_source(url(web))).path).read_bytes() == ROWS


def test_server_that_ignores_ranges_is_supported(web: HubServer, stage: Stage) -> None:
    def send_all(handler: HubHandler) -> bool:
        if not handler.path.endswith(".parquet"):
            return False
        handler.answer(200, {}, {"ETag": '"a"', "Accept-Ranges": "bytes"}, ROWS)
        return True

    web.faults.append(send_all)
    assert Path(stage.staged(make_data_source(url(web))).path).read_bytes() == ROWS


def test_server_without_versions_requires_checksum(web: HubServer, stage: Stage) -> None:
    def send_all(handler: HubHandler) -> bool:
        handler.answer(200, {}, {}, ROWS)
        return True

    web.faults.append(send_all)
    failure = stage.failure(make_data_source(url(web)))
    assert "append #sha256=DIGEST" in failure.message
    stage.staged(make_data_source(f"{url(web)}#sha256={SHA}"))


def test_change_during_download_is_reported(web: HubServer, stage: Stage) -> None:
    def change(handler: HubHandler) -> bool:
        if handler.command == "GET" and handler.path.startswith("/cdn/"):
            web.add("org/name", {"train.parquet": ROWS[::-1]})
        return False

    web.faults.append(change)
    failure = stage.failure(make_data_source(url(web)))
    assert failure.reason is StagingReason.CONTENT_CHANGED
    web.faults.clear()
    assert Path(stage.staged(make_data_source(url(web))).path).read_bytes() == ROWS[::-1]


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (401, StagingReason.TOKEN_MISSING),
        (403, StagingReason.ACCESS_DENIED),
        (404, StagingReason.NOT_FOUND),
        (410, StagingReason.NOT_FOUND),
    ],
)
def test_error_of_server_is_reported(
    web: HubServer, stage: Stage, status: int, reason: StagingReason
) -> None:
    web.fail_once("HEAD", status)
    assert stage.failure(make_data_source(url(web))).reason is reason


def test_model_from_web_server_is_rejected(web: HubServer, stage: Stage) -> None:
    failure = stage.failure(make_model_source(url(web)))
    assert failure.reason is StagingReason.UNSUITABLE_CONTENT
    assert "a model is a folder" in failure.message


def test_untrusted_certificate_is_reported(web: HubServer, tmp_path: Path) -> None:
    failure = Stage(tmp_path, {}).failure(make_data_source(url(web)))
    assert failure.reason is StagingReason.TLS_FAILURE


def test_proxy_of_environment_is_used(web: HubServer, stage: Stage) -> None:
    stage.env["HTTPS_PROXY"] = "http://127.0.0.1:9"
    stage.env["NO_PROXY"] = ""
    failure = stage.failure(make_data_source(url(web)))
    assert failure.reason is StagingReason.UNREACHABLE
    assert "roxy" in failure.message
    assert web.requests == []


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("http://127.0.0.1:1/x", "a URL that is not https"),
        ("http://[", "an invalid URL"),
        ("file:///etc/passwd", "an invalid URL"),
    ],
)
def test_redirect_to_other_scheme_is_rejected(
    web: HubServer, stage: Stage, target: str, problem: str
) -> None:
    web.fail_once("HEAD .*train", 302, {"Location": target})
    failure = stage.failure(make_data_source(url(web)))
    assert failure.reason is StagingReason.UNSUITABLE_CONTENT
    assert f"redirects to {problem}" in failure.message
