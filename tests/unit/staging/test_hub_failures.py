import os
import random
import shutil
from pathlib import Path

import pytest

from raggrpo_api.trainer.staging import StagingReason
from support.servers.hub_server import TOKEN, HubServer
from support.servers.private_authority import make_certificate
from support.staging import PART_BYTES, Stage, files_in, make_model_source

WEIGHTS = random.Random(0).randbytes(3 * PART_BYTES)
MODEL = {"config.json": b"{}", "model.safetensors": WEIGHTS}
SOURCE = make_model_source("hf://org/name")
IN_CDN = "GET /cdn/.*safetensors"


@pytest.mark.parametrize(
    ("url", "reason", "words"),
    [
        (
            "hf://org/name@v9",
            StagingReason.UNKNOWN_REVISION,
            "has no revision v9; specify a branch, tag",
        ),
        ("hf://org/other", StagingReason.TOKEN_MISSING, "does not exist, or is private"),
        ("hf://org/name/missing", StagingReason.NOT_FOUND, "has no files"),
        ("hf://org/empty", StagingReason.UNSUITABLE_CONTENT, "from_pretrained('org/empty')"),
        ("hf://org/name/config.json", StagingReason.UNSUITABLE_CONTENT, "is a file"),
        ("hf://org/hostile", StagingReason.UNSUITABLE_CONTENT, "is not the name of a file"),
    ],
)
def test_wrong_source_is_reported(
    hub: HubServer, stage: Stage, url: str, reason: StagingReason, words: str
) -> None:
    hub.add("org/name", MODEL)
    hub.add("org/empty", {"pytorch_model.bin": b"1"})
    hub.add("org/hostile", {**MODEL, "../../config.json": b"1"})
    failure = stage.failure(make_model_source(url))
    assert failure.reason is reason
    assert words in failure.message
    assert not hub.sent


def test_credentials_of_a_mirror_are_not_shown(stage: Stage) -> None:
    stage.env["HF_ENDPOINT"] = "http://user:secret-password@127.0.0.1:9"
    run = stage.start(SOURCE)
    message = run.result().failures[0].message
    assert "http://127.0.0.1:9 cannot be reached" in message
    assert "secret-password" not in run.output() + message


def test_missing_file_of_authorities_is_reported(stage: Stage) -> None:
    stage.env["RAGGRPO_CA_BUNDLE"] = "/missing/ca.pem"
    run = stage.start(SOURCE)
    assert run.process.wait(60) == 2
    assert "/missing/ca.pem with trusted authorities cannot be read" in run.output()
    assert "Traceback" not in run.output()


def test_private_model_needs_token(hub: HubServer, stage: Stage) -> None:
    hub.add("org/name", MODEL).is_private = True
    missing = stage.failure(SOURCE)
    stage.env["HF_TOKEN"] = "other"
    denied = stage.failure(SOURCE)
    stage.env["HF_TOKEN"] = TOKEN
    unknown = stage.failure(make_model_source("hf://org/other"))
    staged = stage.staged(SOURCE)

    assert missing.reason is StagingReason.TOKEN_MISSING
    assert "HF_TOKEN" in missing.message
    assert denied.reason is StagingReason.ACCESS_DENIED
    assert unknown.reason is StagingReason.NOT_FOUND
    assert "a data set is hf://datasets/org/other" in unknown.message
    assert files_in(Path(staged.path)) == MODEL


@pytest.mark.parametrize(
    ("token", "reason"),
    [("", StagingReason.TOKEN_MISSING), (TOKEN, StagingReason.GATED_MODEL)],
)
def test_gated_model_is_reported(
    hub: HubServer, stage: Stage, token: str, reason: StagingReason
) -> None:
    hub.add("org/name", MODEL).is_gated = True
    stage.env["HF_TOKEN"] = token
    failure = stage.failure(SOURCE)
    assert failure.reason is reason
    assert "hf://org/name is gated; " in failure.message


@pytest.mark.parametrize("request_line", ["GET /api/models/org/name", "GET /org/name/resolve"])
@pytest.mark.parametrize(
    ("status", "headers", "words"),
    [
        (429, {"RateLimit": '"resolvers";r=0;t=1'}, "in 1 s: "),
        (429, {"Retry-After": "1"}, "in 1 s: "),
        (429, {}, "in 0 s: "),
        (503, {}, "in 0 s: "),
        (500, {}, "in 0 s: "),
    ],
)
def test_transient_error_is_retried_when_the_server_allows(
    hub: HubServer,
    stage: Stage,
    request_line: str,
    status: int,
    headers: dict[str, str],
    words: str,
) -> None:
    hub.add("org/name", MODEL)
    hub.fail_once(request_line, status, headers)
    run = stage.start(SOURCE)
    assert files_in(Path(run.result().staged[0].path)) == MODEL
    assert f"Retry 1 {words}{hub.url}" in run.output()


@pytest.mark.parametrize(
    ("status", "reason"), [(429, StagingReason.RATE_LIMITED), (503, StagingReason.UNREACHABLE)]
)
def test_persistent_error_is_reported_as_transient(
    hub: HubServer, stage: Stage, status: int, reason: StagingReason
) -> None:
    hub.add("org/name", MODEL)
    for _ in range(8):
        hub.fail_once("GET /api/models", status)
    run = stage.start(SOURCE)
    assert run.result().failures[0].reason is reason
    assert run.process.returncode == 4


def test_dropped_connection_continues_at_last_byte(hub: HubServer, stage: Stage) -> None:
    hub.add("org/name", MODEL)
    hub.drop_once(IN_CDN, after=PART_BYTES // 2)
    staged = stage.staged(SOURCE)
    assert files_in(Path(staged.path)) == MODEL
    assert hub.sent["model.safetensors"] < len(WEIGHTS) + PART_BYTES


def test_unreachable_hub_is_reported(stage: Stage) -> None:
    stage.env["HF_ENDPOINT"] = "http://127.0.0.1:9"
    failure = stage.failure(SOURCE)
    assert failure.reason is StagingReason.UNREACHABLE
    assert "http://127.0.0.1:9 cannot be reached" in failure.message


def test_damaged_file_is_reported_and_downloaded_again(hub: HubServer, stage: Stage) -> None:
    repository = hub.add("org/name", MODEL)
    files = repository.commits[repository.branches["main"]]
    hub.damaged["model.safetensors"] = WEIGHTS[:-1] + b"!"
    failure = stage.failure(SOURCE)
    assert failure.reason is StagingReason.CHECKSUM_MISMATCH
    assert "model.safetensors differs from its checksum" in failure.message
    assert files["model.safetensors"] == WEIGHTS

    hub.damaged.clear()
    assert files_in(Path(stage.staged(SOURCE).path)) == MODEL


def test_full_disk_is_reported(hub: HubServer, stage: Stage) -> None:
    hub.add("org/name", MODEL)
    failure = stage.failure(SOURCE, prefix=f"ulimit -f {PART_BYTES // 1024}")
    assert failure.reason is StagingReason.DISK_FULL
    assert str(stage.folder) in failure.message


def test_insufficient_space_is_reported_before_download(hub: HubServer, stage: Stage) -> None:
    hub.add("org/name", MODEL)
    hub.sizes["model.safetensors"] = 10**14
    failure = stage.failure(SOURCE)
    assert failure.reason is StagingReason.DISK_FULL
    assert "needs 100000.00 GB" in failure.message
    assert not hub.sent


def test_folder_without_write_permission_is_reported(
    hub: HubServer, stage: Stage, tmp_path: Path
) -> None:
    hub.add("org/name", MODEL)
    (tmp_path / "sources").write_text("a file")
    failure = stage.failure(SOURCE)
    assert failure.reason is StagingReason.FOLDER_NOT_WRITABLE


def test_certificate_of_private_authority(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path)
    with HubServer(certificate) as hub:
        hub.add("org/name", MODEL)
        stage = Stage(tmp_path, {"HF_ENDPOINT": hub.url})
        failure = stage.failure(SOURCE)
        stage.env["RAGGRPO_CA_BUNDLE"] = str(certificate.authority)
        staged = stage.staged(SOURCE)

    assert failure.reason is StagingReason.TLS_FAILURE
    assert "spec.caBundle" in failure.message
    assert files_in(Path(staged.path)) == MODEL
    assert os.environ.get("SSL_CERT_FILE") != str(certificate.authority)


def test_marker_in_repository_is_rejected(hub: HubServer, stage: Stage) -> None:
    marker = b'{"source":"s","revision":"r","isFile":false,"digest":"d","files":{}}'
    files = {f"sub/{name}": content for name, content in (MODEL | {".staged.json": marker}).items()}
    hub.add("org/name", files)
    failure = stage.failure(make_model_source("hf://org/name/sub"))
    assert failure.reason is StagingReason.UNSUITABLE_CONTENT
    assert "reserved name" in failure.message


@pytest.mark.parametrize("name", ["revision", "work"])
def test_link_in_shared_folder_is_not_followed(
    hub: HubServer, stage: Stage, tmp_path: Path, name: str
) -> None:
    hub.add("org/name", MODEL)
    target = Path(stage.staged(SOURCE).path)
    shutil.rmtree(target)
    outside = tmp_path / "outside"
    outside.mkdir()
    if name == "revision":
        target.symlink_to(outside)
    else:
        target.mkdir()
        (target / ".partial").symlink_to(outside)

    failure = stage.failure(SOURCE)

    assert failure.reason is StagingReason.FOLDER_NOT_WRITABLE
    assert "is a link" in failure.message
    assert not list(outside.iterdir())


def test_pipe_in_shared_folder_does_not_block(hub: HubServer, stage: Stage) -> None:
    hub.add("org/name", MODEL)
    target = Path(stage.staged(SOURCE).path)
    (target / ".staged.json").unlink()
    (target / "model.safetensors").unlink()
    os.mkfifo(target / "model.safetensors")
    assert stage.failure(SOURCE).reason is StagingReason.FOLDER_NOT_WRITABLE
