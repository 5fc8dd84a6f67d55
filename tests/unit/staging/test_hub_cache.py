"""The hub's own cache, which several runs and other programs use at the same time."""

import errno
import hashlib
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from huggingface_hub import close_session, constants

from raggrpo_api.fields.source import HubSource
from raggrpo_api.foreign_files import require_own_file
from raggrpo_api.trainer.staging import SourceRole, StagedSource, StagingReason
from raggrpo_staging.hub_cache import stage_in_cache
from raggrpo_staging.progress import ProgressCounter
from support.processes.waiting import wait_for
from support.servers.hub_server import HubServer
from support.staging import PART_BYTES, Stage, make_model_source

WEIGHTS = random.Random(1).randbytes(8 * PART_BYTES)
MODEL = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": WEIGHTS}
SHA256 = hashlib.sha256(WEIGHTS).hexdigest()
SOURCE = make_model_source("hf://org/name")


@pytest.fixture
def stage(tmp_path: Path, hub: HubServer) -> Stage:
    return cache_stage(tmp_path, hub, "one")


def cache_stage(folder: Path, hub: HubServer, name: str) -> Stage:
    """Return the staging of a run with its own folder, and the cache that all runs share."""
    (folder / name).mkdir()
    env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "hub-home")}
    stage = Stage(folder / name, env)
    stage.use_hub_cache = True
    return stage


def repository(folder: Path) -> Path:
    return folder / "hub-home" / "hub" / "models--org--name"


def content(staged: StagedSource) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in Path(staged.path).iterdir()}


def download_with_the_client_of_the_hub(stage: Stage, **env: str) -> None:
    """Fill the cache as other programs do."""
    program = "from huggingface_hub import snapshot_download; snapshot_download('org/name')"
    subprocess.run([sys.executable, "-c", program], env={**stage.env, **env}, check=True)


def test_two_runs_download_once(hub: HubServer, stage: Stage, tmp_path: Path) -> None:
    hub.add("org/name", MODEL)
    released = threading.Event()
    hub.faults.append(lambda handler: "/cdn/" in handler.path and not released.wait(60))
    runs = [each.start(SOURCE) for each in (stage, cache_stage(tmp_path, hub, "other"))]
    wait_for(lambda: any("Waiting for " in run.output() for run in runs))
    released.set()
    results = [run.result() for run in runs]

    assert [each.failures for each in results] == [[], []]
    assert content(results[0].staged[0]) == content(results[1].staged[0]) == MODEL
    assert hub.sent["model.safetensors"] == len(WEIGHTS)
    assert not list((tmp_path / "hub-home").rglob(".lock.*"))


def test_interrupted_download_resumes(hub: HubServer, stage: Stage, tmp_path: Path) -> None:
    hub.add("org/name", MODEL)
    hub.seconds_per_chunk = 0.05
    run = stage.start(SOURCE)

    def parts_on_disk() -> int:
        return sum(each.read_bytes().count(b"1") for each in tmp_path.rglob("*.parts"))

    wait_for(lambda: parts_on_disk() >= 2)
    run.kill()
    parts = parts_on_disk()
    hub.seconds_per_chunk = 0.0
    wait_for(hub.is_idle)
    hub.sent.clear()

    assert content(stage.staged(SOURCE)) == MODEL
    assert hub.sent["model.safetensors"] == len(WEIGHTS) - parts * PART_BYTES


def test_complete_files_are_not_replaced(hub: HubServer, stage: Stage, tmp_path: Path) -> None:
    hub.add("org/name", MODEL)
    links = list(Path(stage.staged(SOURCE).path).iterdir())
    before = [each.lstat() for each in links]
    stage.staged(SOURCE)
    assert [each.lstat().st_ino for each in links] == [each.st_ino for each in before]
    assert [each.lstat().st_ctime_ns for each in links] == [each.st_ctime_ns for each in before]


@pytest.mark.parametrize("offline", ["0", "1"])
@pytest.mark.parametrize("without_links", ["0", "1"])
def test_complete_read_only_cache_is_used(
    hub: HubServer, stage: Stage, offline: str, without_links: str
) -> None:
    hub.add("org/name", MODEL)
    download_with_the_client_of_the_hub(stage, HF_HUB_DISABLE_SYMLINKS=without_links)
    hub.sent.clear()
    stage.env["HF_HUB_OFFLINE"] = offline
    run = stage.start(SOURCE, prefix=read_only(stage))
    result = run.result()
    assert result.staged, run.output()
    assert content(result.staged[0]) == MODEL
    assert hub.sent["model.safetensors"] == 0


def test_read_only_cache_of_an_older_commit_has_a_remedy(hub: HubServer, stage: Stage) -> None:
    hub.add("org/name", {**MODEL, "config.json": b"[]"})
    stage.staged(SOURCE)
    hub.add("org/name", MODEL)
    failure = stage.failure(SOURCE, prefix=read_only(stage))
    assert failure.reason is StagingReason.FOLDER_NOT_WRITABLE
    assert failure.message.endswith(
        "cannot be written to (Read-only file system); set HF_HOME to a writable folder"
    )


def read_only(stage: Stage) -> str:
    """Return the prefix of a command that sees a read-only cache."""
    mount = f"mount --bind -o ro {stage.env['HF_HOME']} {stage.env['HF_HOME']}"
    command = f'{mount} && exec "$@"'
    return f"set -- unshare --map-root-user --mount bash -c '{command}' bash \"$@\""


def test_files_without_links_are_reused(hub: HubServer, stage: Stage) -> None:
    hub.add("org/name", MODEL)
    download_with_the_client_of_the_hub(stage, HF_HUB_DISABLE_SYMLINKS="1")
    hub.sent.clear()
    staged = stage.staged(SOURCE)
    assert not any(each.is_symlink() for each in Path(staged.path).iterdir())
    assert content(staged) == MODEL
    assert hub.sent["model.safetensors"] == 0


def test_truncated_file_is_downloaded_again(hub: HubServer, stage: Stage) -> None:
    hub.add("org/name", MODEL)
    path = Path(stage.staged(SOURCE).path) / "model.safetensors"
    os.truncate(path.resolve(), 1000)
    assert content(stage.staged(SOURCE)) == MODEL
    path.unlink()
    path.write_bytes(WEIGHTS[:1000])
    assert content(stage.staged(SOURCE)) == MODEL


def test_file_in_the_store_of_all_repositories_is_used(
    hub: HubServer, stage: Stage, tmp_path: Path
) -> None:
    """The clients of the hub move files of the content store there, under another checksum."""
    hub.add("org/name", MODEL)
    first = stage.staged(SOURCE)
    shared = tmp_path / "hub-home" / "hub" / "blobs" / "aa" / ("a" * 64)
    shared.parent.mkdir(parents=True)
    blob = repository(tmp_path) / "blobs" / SHA256
    blob.rename(shared)
    blob.symlink_to(os.path.relpath(shared, blob.parent))
    hub.sent.clear()
    second = stage.staged(SOURCE)

    assert (second.path, second.digest) == (first.path, first.digest)
    assert hub.sent["model.safetensors"] == 0
    require_own_file(Path(second.path) / "model.safetensors")


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP])
def test_files_are_stored_without_links(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "*")
    close_session()

    def symlink_to(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "symlink_to", symlink_to)
    hub.add("org/name", MODEL)

    def staged() -> Path:
        arguments = (HubSource("org/name"), SourceRole.MODEL, "", tmp_path / "sources")
        return stage_in_cache(*arguments, ProgressCounter(None), threading.Event())[0]

    path = staged()
    # config.json and tokenizer.json have the same content
    assert {each.name: each.read_bytes() for each in path.iterdir()} == MODEL
    assert not list((path.parents[1] / "blobs").iterdir())
    hub.sent.clear()
    assert staged() == path
    assert hub.sent["model.safetensors"] == 0
