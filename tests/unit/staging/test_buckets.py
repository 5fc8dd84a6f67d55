import random
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from raggrpo_api.trainer.staging import StagingReason
from support.servers.gcs_server import GcsServer
from support.servers.s3_server import S3Server
from support.servers.token_server import TokenServer, write_service_account
from support.staging import (
    PART_BYTES,
    Stage,
    files_in,
    make_data_source,
    make_model_source,
    run_push,
)

MODEL = {
    "config.json": b"{}",
    "model.safetensors": random.Random(1).randbytes(2 * PART_BYTES + 5),
    "training_args.bin": b"unused",
}
NEEDED = {name: MODEL[name] for name in ("config.json", "model.safetensors")}


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with S3Server() as server:
        for name, content in MODEL.items():
            server.client().put_object(Bucket=server.bucket, Key=f"models/a/{name}", Body=content)
        yield server


@pytest.fixture(scope="module")
def gcs() -> Iterator[GcsServer]:
    with GcsServer() as server:
        for name, content in MODEL.items():
            server.add(f"models/a/{name}", content)
        yield server


@pytest.fixture
def s3_stage(tmp_path: Path, s3: S3Server) -> Stage:
    return Stage(tmp_path, s3.env)


@pytest.fixture
def gcs_stage(tmp_path: Path, gcs: GcsServer) -> Stage:
    return Stage(tmp_path, gcs.env)


def test_model_in_s3_is_staged_and_reused(s3_stage: Stage) -> None:
    first = s3_stage.staged(make_model_source("s3://runs/models/a"))
    assert files_in(Path(first.path)) == NEEDED
    again = s3_stage.staged(make_model_source("s3://runs/models/a"))
    assert again == first.model_copy(update={"seconds": 0.0})


def test_model_in_gcs_is_staged(gcs_stage: Stage) -> None:
    staged = gcs_stage.staged(make_model_source("gs://models/models/a/"))
    assert files_in(Path(staged.path)) == NEEDED


def test_replaced_object_has_another_revision(s3: S3Server, s3_stage: Stage) -> None:
    key = {"Bucket": s3.bucket, "Key": "data/train.jsonl"}
    s3.client().put_object(**key, Body=b"{}\n")
    first = s3_stage.staged(make_data_source("s3://runs/data/train.jsonl"))
    s3.client().put_object(**key, Body=b"[]\n")
    second = s3_stage.staged(make_data_source("s3://runs/data/train.jsonl"))

    assert first.revision != second.revision
    assert Path(first.path).read_bytes() == b"{}\n"
    assert Path(second.path).read_bytes() == b"[]\n"
    failure = s3_stage.start(make_data_source("s3://runs/data/train.jsonl", "0" * 32)).result()
    assert failure.failures[0].reason is StagingReason.CONTENT_CHANGED


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s3://runs/models/other", "does not exist; correct the bucket or the key"),
        ("s3://other/models/a", "does not exist"),
        ("gs://models/models/other", "does not exist"),
    ],
)
def test_missing_object_is_reported(
    tmp_path: Path, s3: S3Server, gcs: GcsServer, url: str, words: str
) -> None:
    failure = Stage(tmp_path, {**s3.env, **gcs.env}).failure(make_model_source(url))
    assert failure.reason is StagingReason.NOT_FOUND
    assert words in failure.message


def test_file_for_a_model_is_reported(s3_stage: Stage) -> None:
    failure = s3_stage.failure(make_model_source("s3://runs/models/a/model.safetensors"))
    assert failure.reason is StagingReason.UNSUITABLE_CONTENT
    assert "is a file, but a model is a folder" in failure.message


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_unreachable_store_is_reported(tmp_path: Path, scheme: str) -> None:
    closed = "http://127.0.0.1:9"
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_MAX_ATTEMPTS": "1"}
    env: Mapping[str, str] = {
        "AWS_ENDPOINT_URL_S3": closed,
        "STORAGE_EMULATOR_HOST": closed,
        **keys,
    }
    failure = Stage(tmp_path, env).failure(make_model_source(f"{scheme}://bucket/key"))
    assert failure.reason is StagingReason.UNREACHABLE
    assert f"{scheme}://bucket cannot be reached" in failure.message


def test_s3_credentials_are_verified(tmp_path: Path, folder_of_model: Path) -> None:
    source = make_model_source("s3://runs/models/a")
    with S3Server() as server:
        for name, content in MODEL.items():
            server.client().put_object(Bucket=server.bucket, Key=f"models/a/{name}", Body=content)
        env = server.require_signatures()
        wrong = env | {"AWS_SECRET_ACCESS_KEY": "w" * 40}
        unknown = env | {"AWS_ACCESS_KEY_ID": "AKIA" + "X" * 16}

        staged = Stage(new(tmp_path), env).staged(source)
        assert files_in(Path(staged.path)) == NEEDED
        for each in (wrong, unknown):
            stage = Stage(new(tmp_path), each)
            failure = stage.failure(source)
            assert failure.reason is StagingReason.ACCESS_DENIED
            assert "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in failure.message
            assert "w" * 40 not in failure.message
            done = run_push(stage, folder_of_model, "s3://runs/result")
            assert done.returncode == 3
            assert "error: AccessDenied: " in done.stderr
        done = run_push(Stage(new(tmp_path), env), folder_of_model, "s3://runs/result")
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("status", "answer", "reason"),
    [
        (400, {"error": "invalid_grant", "error_description": "Invalid JWT Signature."},
         StagingReason.ACCESS_DENIED),
        (401, {"error": "invalid_client"}, StagingReason.ACCESS_DENIED),
        (503, {"error": "unavailable"}, StagingReason.UNREACHABLE),
    ],
)  # fmt: skip
def test_rejected_service_account_is_reported(
    tmp_path: Path, status: int, answer: Mapping[str, str], reason: StagingReason
) -> None:
    with TokenServer(status, answer) as server:
        account = write_service_account(tmp_path, server.url)
        env = {"GOOGLE_APPLICATION_CREDENTIALS": str(account), "NO_GCE_CHECK": "true"}
        stage = Stage(new(tmp_path), env)
        failure = stage.failure(make_model_source("gs://models/a"))
    assert failure.reason is reason
    if reason is StagingReason.ACCESS_DENIED:
        assert "access to gs://models/a is denied" in failure.message
        assert "GOOGLE_APPLICATION_CREDENTIALS" in failure.message
    assert server.is_signed


@pytest.fixture
def folder_of_model(tmp_path: Path) -> Path:
    folder = tmp_path / "export"
    folder.mkdir()
    for name, content in NEEDED.items():
        (folder / name).write_bytes(content)
    return folder


def new(base: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=base))
