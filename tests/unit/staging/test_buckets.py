import random
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from raggrpo_api.trainer.staging import StagingReason
from support.servers.gcs_server import GcsServer
from support.servers.s3_server import S3Server
from support.staging import PART_BYTES, Stage, files_in, make_data_source, make_model_source

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
