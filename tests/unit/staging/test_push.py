import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from raggrpo_api.fields.source import parse_push_target
from raggrpo_api.trainer.staging import PushResult, StagingProgress
from raggrpo_staging.failures import StagingFailed
from raggrpo_staging.progress import ProgressCounter
from raggrpo_staging.push import push as upload_folder
from support.servers.gcs_server import GcsServer
from support.servers.hub_server import TOKEN, HubServer
from support.servers.oci_registry import OciRegistry
from support.servers.s3_server import S3Server
from support.staging import Stage, files_in, make_model_source, run_push

FILES = {
    "config.json": b"{}",
    "model.safetensors": b"weights" * 10_000,
    "adapter/adapter_config.json": b'{"r": 32}',
    "README.md": b"# Model\n",
}
PROGRESS = "push-progress.json"
STAGED = {name: FILES[name] for name in ("config.json", "model.safetensors", "README.md")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in {**FILES, ".partial/x": b"unused"}.items():
        file = tmp_path / "export" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    (tmp_path / "export" / "link.json").symlink_to("/etc/passwd")
    return tmp_path / "export"


def push(
    stage: Stage, folder: Path, target: str, env: Mapping[str, str] = {}
) -> tuple[subprocess.CompletedProcess[str], PushResult | None]:
    file, progress = stage.base / "push.json", stage.base / PROGRESS
    stage.env |= env
    done = run_push(stage, folder, target, "--result", str(file), "--progress", str(progress))
    result = PushResult.model_validate_json(file.read_text()) if file.exists() else None
    if result is not None:
        sent = StagingProgress.model_validate_json(progress.read_text())
        assert (sent.bytes_done, sent.bytes_total) == (result.bytes, result.bytes)
    return done, result


def test_push_to_hub_creates_private_repository(hub: HubServer, stage: Stage, folder: Path) -> None:
    _, result = push(stage, folder, "hf://org/result", {"HF_TOKEN": TOKEN})
    repository = hub.repositories["org/result"]
    assert result is not None
    assert repository.is_private
    assert repository.commits[result.revision] == FILES
    assert result.bytes == sum(map(len, FILES.values()))

    stage.env["HF_TOKEN"] = TOKEN
    assert files_in(Path(stage.staged(make_model_source("hf://org/result")).path)) == STAGED


def test_push_to_folder_and_branch_of_hub(hub: HubServer, stage: Stage, folder: Path) -> None:
    repository = hub.add("org/result", {"old": b"1"})
    _, result = push(stage, folder, "hf://org/result@best/run-1", {"HF_TOKEN": TOKEN})
    assert result is not None
    assert result.revision == repository.branches["best"]
    assert set(repository.commits[result.revision]) == {"old", *(f"run-1/{name}" for name in FILES)}


def test_push_to_s3(stage: Stage, folder: Path) -> None:
    with S3Server() as s3:
        stage.env |= s3.env
        _, result = push(stage, folder, "s3://runs/result")
        assert result is not None
        assert s3.objects() == sorted(f"result/{name}" for name in FILES)
        assert files_in(Path(stage.staged(make_model_source("s3://runs/result")).path)) == STAGED


def test_push_to_gcs(stage: Stage, folder: Path) -> None:
    with GcsServer() as gcs:
        stage.env |= gcs.env
        _, result = push(stage, folder, "gs://models/result")
        assert result is not None
        assert {name: gcs.read(f"result/{name}") for name in FILES} == FILES


def test_push_to_registry_creates_artifact(
    registry: OciRegistry, stage: Stage, folder: Path
) -> None:
    target = f"oci://{registry.host}/result:v1"
    _, result = push(stage, folder, target)
    assert result is not None
    staged = stage.staged(make_model_source(target))
    assert staged.revision == result.revision
    assert files_in(Path(staged.path)) == STAGED


def test_failed_push_is_retried(hub: HubServer, stage: Stage, folder: Path) -> None:
    hub.fail_once("POST .*/commit/", 503)
    hub.fail_once("POST /api/repos/create", 429, {"RateLimit": '"api";r=0;t=1'})
    done, result = push(stage, folder, "hf://org/result", {"HF_TOKEN": TOKEN})
    assert result is not None
    assert "Retry" in done.stdout + done.stderr
    assert set(hub.repositories["org/result"].commits[result.revision]) == set(FILES)


@pytest.mark.parametrize(
    ("target", "code", "words"),
    [
        ("hf://org/name", 3, "TokenMissing: hf://org/name"),
        ("https://host/a", 2, "--target: results cannot be pushed to https://"),
        ("ftp://host/a", 2, "known scheme"),
    ],
)
def test_push_that_fails_is_reported(
    stage: Stage, folder: Path, target: str, code: int, words: str
) -> None:
    done, result = push(stage, folder, target)
    assert result is None
    assert done.returncode == code
    assert words in done.stderr


def test_push_to_unreachable_target_may_be_repeated(stage: Stage, folder: Path) -> None:
    stage.env["HF_ENDPOINT"] = "http://127.0.0.1:9"
    done, _ = push(stage, folder, "hf://org/name", {"HF_TOKEN": TOKEN})
    assert done.returncode == 4
    assert "Unreachable" in done.stderr


def test_push_of_empty_folder_is_rejected(stage: Stage, tmp_path: Path) -> None:
    done, _ = push(stage, tmp_path / "none", "hf://org/name")
    assert done.returncode == 3
    assert "has no files" in done.stderr


def test_unreadable_file_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stat(path: Path, **_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("raggrpo_staging.push.upload_files", lambda _: ["config.json"])
    monkeypatch.setattr(Path, "stat", stat)
    with pytest.raises(
        StagingFailed, match=r"/config.json cannot be read \(Permission denied\); c"
    ):
        upload_folder(tmp_path, parse_push_target("hf://org/name"), ProgressCounter(None))


def test_bytes_of_failed_upload_do_not_count(tmp_path: Path) -> None:
    progress = ProgressCounter(None)
    progress.expect(100, 0)
    with suppress(OSError), progress.upload(60) as count:
        count(40)
        assert progress.value.bytes_done == 40
        raise OSError
    assert progress.value.bytes_done == 0
    with progress.upload(60) as count:
        count(70)  # a client may count headers
    with progress.upload(40):
        pass  # the target has the file
    assert progress.value.bytes_done == 100


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_upload_to_bucket_is_counted_in_parts(
    stage: Stage, tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []
    folder, size = tmp_path / "large", 101 * 2**20
    folder.mkdir()
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(size)
    monkeypatch.setattr(ProgressCounter, "add", lambda _, number: counted.append(number))
    with S3Server() if scheme == "s3" else GcsServer() as server:
        for name, value in server.env.items():
            monkeypatch.setenv(name, value)
        target = parse_push_target(f"{scheme}://{server.bucket}/large")
        upload_folder(folder, target, ProgressCounter(None))
    assert sum(counted) == size
    assert len(list(filter(None, counted))) > 1
