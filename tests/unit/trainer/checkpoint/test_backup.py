import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from raggrpo_api.file_names import path_below, regular_file_below
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.checkpoint import backup as checkpoint_backup
from raggrpo_trainer.checkpoint.fence import Fence
from raggrpo_trainer.errors import TrainerError
from support.builders.trainer.checkpoints import (
    SaveShards,
    is_whole,
    make_claim,
    make_meta,
    make_store,
    shards,
)


def nested_shards(step: int) -> SaveShards:
    def write(folder: Path) -> dict[str, str]:
        (folder / "extra").mkdir()
        (folder / "extra" / "data").write_text(str(step))
        return shards(step)(folder)

    return write


@pytest.mark.row("A27")
def test_empty_volume_is_restored_from_newest_backup(tmp_path: Path) -> None:
    store = make_store(make_claim(tmp_path / "volume"), backup=tmp_path / "backup")
    for step in (10, 20):
        store.back_up(store.save(make_meta(step), nested_shards(step), score=step / 100))

    fresh = make_store(make_claim(tmp_path / "new", attempt=7), backup=tmp_path / "backup")
    assert fresh.newest is None
    restored = fresh.restore()

    assert restored is not None
    assert restored is fresh.newest
    assert is_whole(restored)
    assert (restored.folder / "extra" / "data").read_text() == "20"
    assert (restored.marker.attempt, restored.marker.score) == (7, 0.2)
    later = make_store(make_claim(tmp_path / "new", attempt=8)).newest
    assert later is not None
    assert later.name == restored.name


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: (folder / "COMPLETE").unlink(),
        lambda folder: os.truncate(folder / "COMPLETE", 30),
        lambda folder: os.truncate(folder / "__0_0.distcp", 100),
        lambda folder: (folder / "meta.json").unlink(),
    ],
)
def test_incomplete_backup_is_ignored(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    store = make_store(make_claim(tmp_path / "volume"), backup=tmp_path / "backup")
    for step in (10, 20):
        store.back_up(store.save(make_meta(step), shards(step)))
    spoil(tmp_path / "backup" / "step_00000020.e1")
    restored = make_store(make_claim(tmp_path / "new"), backup=tmp_path / "backup").restore()

    assert restored is not None
    assert restored.marker.step == 10


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda folder: os.truncate(folder / "COMPLETE", 30), "COMPLETE is invalid: "),
        (lambda folder: os.truncate(folder / "__0_0.distcp", 100), "has 100 bytes instead of"),
        (lambda folder: (folder / "meta.json").unlink(), "meta.json does not exist"),
    ],
)
def test_restore_fails_if_no_backup_is_valid(
    tmp_path: Path, spoil: Callable[[Path], None], reason: str
) -> None:
    store = make_store(make_claim(tmp_path / "volume"), backup=tmp_path / "backup")
    store.back_up(store.save(make_meta(10), shards(10)))
    spoil(tmp_path / "backup" / "step_00000010.e1")

    with pytest.raises(TrainerError, match=f"/backup is valid: .*{reason}.*; remove the folders"):
        make_store(make_claim(tmp_path / "new"), backup=tmp_path / "backup").restore()


def test_interrupted_copy_of_the_first_backup_is_ignored(tmp_path: Path) -> None:
    store = make_store(make_claim(tmp_path / "volume"), backup=tmp_path / "backup")
    store.back_up(store.save(make_meta(10), shards(10)))
    (tmp_path / "backup" / "step_00000010.e1" / "COMPLETE").unlink()

    assert make_store(make_claim(tmp_path / "new"), backup=tmp_path / "backup").restore() is None


def test_restore_without_backups_returns_none(tmp_path: Path) -> None:
    assert make_store(make_claim(tmp_path)).restore() is None
    assert make_store(make_claim(tmp_path), backup=tmp_path / "none").restore() is None
    (tmp_path / "empty").mkdir()
    assert make_store(make_claim(tmp_path), backup=tmp_path / "empty").restore() is None


def test_superseded_attempt_does_not_complete_backup(tmp_path: Path) -> None:
    store = make_store(make_claim(tmp_path / "volume"), backup=tmp_path / "backup")
    saved = store.save(make_meta(10), shards(10))
    make_claim(tmp_path / "volume", attempt=2)

    with pytest.raises(TrainerError) as raised:
        store.back_up(saved)
    assert raised.value.exit_code is ExitCode.SUPERSEDED
    assert not (tmp_path / "backup" / "step_00000010.e1" / "COMPLETE").exists()


class FenceWithWork(Fence):
    """Fence that calls `work` during a backup."""

    work: Callable[[], None] = staticmethod(lambda: None)

    def check(self) -> None:
        work, self.work = self.work, lambda: None
        work()
        super().check()


def test_retention_keeps_checkpoint_during_backup(tmp_path: Path) -> None:
    fence = FenceWithWork.claim(tmp_path / "volume", "uid-1", "demo", 1, beat_seconds=3600)
    store = make_store(fence, keep_last=1, keep_best=False, backup=tmp_path / "backup")
    saved = store.save(make_meta(10), shards(10))

    def train_on() -> None:
        store.save(make_meta(20), shards(20))
        assert saved.folder.exists()

    fence.work = train_on
    store.protect(saved)
    store.back_up(saved)
    store.unprotect(saved)
    assert (tmp_path / "backup" / "step_00000010.e1" / "COMPLETE").exists()
    store.save(make_meta(30), shards(30))
    assert [p.name for p in (tmp_path / "volume").glob("step*")] == ["step_00000030.e1"]


def test_backup_error_names_url(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = make_store(make_claim(tmp_path / "volume"), backup=tmp_path / "file" / "below")
    saved = store.save(make_meta(10), shards(10))

    with pytest.raises(TrainerError, match=r"backup.url file://\S*/file/below: ") as failure:
        store.back_up(saved)
    assert failure.value.exit_code is ExitCode.CHECKPOINT_WRITE_FAILED


def test_unknown_scheme_of_backup_url_is_rejected() -> None:
    with pytest.raises(TrainerError, match=r"dropbox://x has an unknown scheme; use") as raised:
        next(checkpoint_backup.complete_backups("dropbox://x", ""))
    assert raised.value.exit_code is ExitCode.CONFIG_ERROR


@pytest.mark.parametrize(
    "name",
    [
        "{outside}",
        "../../outside/planted",
        "extra/../../../outside/planted",
        "..",
        ".",
        "",
        "a\x00b",
        "a\nb",
        "COMPLETE",
        "REJECTED",
        "..\\..\\planted",
    ],
)
def test_backup_with_name_outside_folder_is_not_fetched(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    caplog.set_level(logging.WARNING)
    store = make_store(make_claim(tmp_path / "volume"), backup=tmp_path / "backup")
    for step in (10, 20):
        store.back_up(store.save(make_meta(step), shards(step)))
    outside = tmp_path / "outside" / "planted"
    outside.parent.mkdir()
    folder = tmp_path / "backup" / "step_00000020.e1"
    marker = json.loads((folder / "COMPLETE").read_text())
    marker["files"][name.format(outside=outside)] = 0
    (folder / "COMPLETE").write_text(json.dumps(marker))

    restored = make_store(make_claim(tmp_path / "new"), backup=tmp_path / "backup").restore()

    assert restored is not None
    assert restored.marker.step == 10
    assert list(outside.parent.iterdir()) == []
    assert f"the backup at {folder} is not used: COMPLETE is invalid" in caplog.text


def test_path_below_rejects_names_that_pass_through_links(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link").symlink_to(tmp_path)
    assert path_below(tmp_path / "folder", "a/b.c") == tmp_path / "folder" / "a" / "b.c"
    for name in ("link", "link/planted"):
        with pytest.raises(ValueError, match="is a link"):
            path_below(tmp_path / "folder", name)


def test_regular_file_below_rejects_special_and_missing_files(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "sub").mkdir()
    os.mkfifo(tmp_path / "fifo")
    assert regular_file_below(tmp_path, "file") == tmp_path / "file"
    for name in ("fifo", "sub", "missing"):
        with pytest.raises(ValueError, match="is not a regular file"):
            regular_file_below(tmp_path, name)
