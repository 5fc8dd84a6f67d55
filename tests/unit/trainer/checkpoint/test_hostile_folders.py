"""Names, links and pipes in checkpoint folders, claims and backups of an attacker."""

import contextlib
import hashlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem

from raggrpo_api.foreign_files import remove_folder
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.checkpoint import backup
from raggrpo_trainer.checkpoint.folder import CheckpointName, write_atomically
from raggrpo_trainer.checkpoint.store import CheckpointStore
from raggrpo_trainer.data.sampler import Cursor, Sampler
from raggrpo_trainer.errors import TrainerError
from support.builders.trainer.checkpoints import make_claim, make_meta, make_store, shards

CPU_SECONDS = 20
WAIT_SECONDS = 300
"""Long enough for any machine: only a pipe is waited for forever."""


@pytest.fixture(autouse=True)
def limit() -> Iterator[None]:
    """Fail instead of waiting for a pipe forever, or after too much computation."""

    def expired(*_: object) -> None:
        pytest.fail("did not return within the limits")

    previous = {each: signal.signal(each, expired) for each in (signal.SIGALRM, signal.SIGPROF)}
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    signal.alarm(WAIT_SECONDS)
    yield
    signal.alarm(0)
    signal.setitimer(signal.ITIMER_PROF, 0)
    for number, handler in previous.items():
        signal.signal(number, handler)


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A folder that must not change."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_text("secret")
    yield folder
    assert {p.name: p.read_text() for p in folder.iterdir()} == {"secret": "secret"}


def save_one(path: Path, *, bucket: Path | None = None) -> CheckpointStore:
    store = make_store(make_claim(path), backup=bucket)
    saved = store.save(make_meta(10), shards(10))
    if bucket:
        store.back_up(saved)
    return store


PLANTED: dict[str, Callable[[Path, Path], object]] = {
    "pipe": lambda path, _outside: os.mkfifo(path),
    "file": lambda path, _outside: path.write_text("x"),
    "link to a folder": lambda path, outside: path.symlink_to(outside),
    "link to a file": lambda path, outside: path.symlink_to(outside / "secret"),
    "link to nothing": lambda path, _outside: path.symlink_to("nowhere"),
    "link to itself": lambda path, _outside: path.symlink_to(path.name),
    "link to a device": lambda path, _outside: path.symlink_to("/dev/zero"),
}
planted = pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED.keys())


@planted
@pytest.mark.parametrize(
    "name", ["step_00000020.e1", "step_00000005.e1", "export.x.tmp", "export.old.tmp"]
)
def test_planted_path_does_not_end_a_start(
    tmp_path: Path, outside: Path, plant: Callable[[Path, Path], object], name: str
) -> None:
    save_one(tmp_path / "volume")
    plant(tmp_path / "volume" / name, outside)

    store = make_store(make_claim(tmp_path / "volume", attempt=2), keep_last=1, keep_best=False)
    store.clean_up()
    for step in (30, 40):
        store.save(make_meta(step), shards(step))

    assert [each.marker.step for each in store.checkpoints] == [40]


@planted
@pytest.mark.parametrize("name", ["export", "export.e2.tmp", "export.old.tmp"])
def test_planted_export_is_replaced_or_reported(
    tmp_path: Path, outside: Path, plant: Callable[[Path, Path], object], name: str
) -> None:
    save_one(tmp_path / "volume")
    plant(tmp_path / "volume" / name, outside)
    store = make_store(make_claim(tmp_path / "volume", attempt=2))

    with contextlib.suppress(TrainerError) as ended:
        ended = store.export(lambda folder: (folder / "model").write_text("x") and None)
    assert ended is None or (ended / "model").read_text() == "x"


@planted
def test_save_reports_a_planted_path(
    tmp_path: Path, outside: Path, plant: Callable[[Path, Path], object]
) -> None:
    store = save_one(tmp_path / "volume")
    plant(tmp_path / "volume" / "step_00000020.e1", outside)

    with pytest.raises(TrainerError, match=r"step_00000020\.e1 \(EEXIST\)"):
        store.save(make_meta(20), shards(20))


def test_linked_checkpoint_is_not_removed(tmp_path: Path) -> None:
    save_one(tmp_path / "other")
    store = make_store(make_claim(tmp_path / "volume"), keep_last=1, keep_best=False)
    (tmp_path / "volume" / "step_00000005.e1").symlink_to(tmp_path / "other" / "step_00000010.e1")

    store.save(make_meta(10), shards(10))

    assert (tmp_path / "other" / "step_00000010.e1" / "COMPLETE").is_file()


@planted
def test_draft_is_not_written_through_a_planted_path(
    tmp_path: Path, outside: Path, plant: Callable[[Path, Path], object]
) -> None:
    plant(tmp_path / "file.tmp", outside)

    write_atomically(tmp_path / "file", "content")

    assert (tmp_path / "file").read_text() == "content"
    assert not (tmp_path / "file").is_symlink()


@planted
def test_planted_files_of_the_fence_are_not_written(
    tmp_path: Path, outside: Path, plant: Callable[[Path, Path], object]
) -> None:
    save_one(tmp_path / "volume")
    for name in ("00000002.beat", "00000002.accepts.tmp"):
        plant(tmp_path / "volume" / "fence" / name, outside)

    fence = make_claim(tmp_path / "volume", attempt=2)

    assert fence.epoch == 2


@planted
def test_planted_heartbeat_is_reported(
    tmp_path: Path, outside: Path, plant: Callable[[Path, Path], object]
) -> None:
    fence = make_claim(tmp_path / "volume", beat_seconds=0.01)
    beat = tmp_path / "volume" / "fence" / "00000001.beat"
    beat.unlink()
    plant(beat, outside)
    if beat.is_file() and not beat.is_symlink():
        return  # a file is a heartbeat

    def wait_for_error() -> None:
        while True:
            fence.check()

    with pytest.raises(TrainerError, match="cannot write the heartbeat"):
        wait_for_error()


def test_linked_fence_is_rejected(tmp_path: Path, outside: Path) -> None:
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume" / "fence").symlink_to(outside)

    with pytest.raises(TrainerError, match="fence is a link"):
        make_claim(tmp_path / "volume")


@pytest.mark.parametrize("name", ["fence/999999999999999999", "step_00000001.e999999999999999999"])
def test_last_epoch_is_reported(tmp_path: Path, name: str) -> None:
    store = save_one(tmp_path)
    content = (tmp_path / "fence" / "00000001").read_text()
    if name.startswith("fence"):
        (tmp_path / name).write_text(content)
    else:
        (tmp_path / name).mkdir()

    with pytest.raises(TrainerError, match=r"of epoch 9{18}.*set checkpoint\.path"):
        make_claim(tmp_path, attempt=2)
    assert store.newest is not None


@pytest.mark.parametrize(
    "folder",
    [
        "step_000000020.e1",
        "step_00000020.e01",
        "step_0000002\uff10.e1",
        "step_00000020.e1\n",
        "step_00000020.e1 ",
        "step_00000020.e1.tmp",
        "STEP_00000020.e1",
    ],
)
def test_other_spellings_of_a_name_are_ignored(tmp_path: Path, folder: str) -> None:
    assert CheckpointName.among([folder, "step_00000020.e1"]) == [CheckpointName(20, 1)]
    (tmp_path / folder).mkdir()
    store = save_one(tmp_path)
    store.clean_up()
    store.save(make_meta(20), shards(20))

    assert [each.marker.step for each in store.checkpoints] == [20, 10]
    assert (tmp_path / folder).exists()


@pytest.mark.parametrize("claim", ["000000009", "9", "0000000\uff19", "00000009.beat"])
def test_other_spellings_of_a_claim_are_ignored(tmp_path: Path, claim: str) -> None:
    save_one(tmp_path)
    (tmp_path / "fence" / claim).write_text("{}")

    assert make_claim(tmp_path, attempt=2).epoch == 2


def test_reason_of_a_rejection_has_no_control_characters(tmp_path: Path) -> None:
    save_one(tmp_path)
    (tmp_path / "step_00000010.e1" / "REJECTED").write_text("\x1b]0;x\x07\u202e\x00" * 50)

    [skipped] = make_store(make_claim(tmp_path, attempt=2)).skipped

    assert skipped.reason.isprintable()


@pytest.mark.parametrize("cursor", [{"position": -1}, {"epoch": -1}, {"position": 10**30}])
def test_cursor_out_of_range_is_rejected(tmp_path: Path, cursor: dict[str, int]) -> None:
    bucket = tmp_path / "bucket"
    save_one(tmp_path / "volume", bucket=bucket)
    rewrite_meta(bucket / "step_00000010.e1", cursor=cursor)

    with pytest.raises(TrainerError, match=r"cursor\."):
        make_store(make_claim(tmp_path / "new"), backup=bucket).restore()


def rewrite_meta(folder: Path, **changes: object) -> None:
    """Change the metadata of a backup, and its digest."""
    content = json.dumps(json.loads((folder / "meta.json").read_text()) | changes).encode()
    (folder / "meta.json").write_bytes(content)
    marker = json.loads((folder / "COMPLETE").read_text())
    digest = hashlib.sha256(content).hexdigest()
    marker["files"]["meta.json"] = {"size": len(content), "sha256": digest}
    (folder / "COMPLETE").write_text(json.dumps(marker))


def test_batch_before_the_data_is_rejected() -> None:
    with pytest.raises(ValueError, match="not in the data"):
        Sampler(10, seed=0).next_batch(Cursor(0, -5), 4)


def test_large_meta_is_rejected(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    save_one(tmp_path / "volume", bucket=bucket)
    rewrite_meta(bucket / "step_00000010.e1", resume_values={"a": [[]] * 2_000_000})

    with pytest.raises(TrainerError, match="more than 4,194,304 bytes"):
        make_store(make_claim(tmp_path / "new"), backup=bucket).restore()


def test_deep_names_are_rejected_before_they_are_split(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    save_one(tmp_path / "volume", bucket=bucket)
    marker = json.loads((bucket / "step_00000010.e1" / "COMPLETE").read_text())
    empty = {"size": 0, "sha256": "0" * 64}
    deep = {"/".join([str(each), *"a" * 400]): empty for each in range(1000)}
    for step in range(20, 110):
        folder = bucket / f"step_{step:08d}.e1"
        folder.mkdir()
        content = marker | {"step": step, "files": deep}
        (folder / "COMPLETE").write_text(json.dumps(content))

    restored = make_store(make_claim(tmp_path / "new"), backup=bucket).restore()

    assert restored is not None


@pytest.mark.parametrize("count", [101, 1500])
def test_many_empty_folders_do_not_start_over(tmp_path: Path, count: int) -> None:
    bucket = tmp_path / "bucket"
    save_one(tmp_path / "volume", bucket=bucket)
    for number in range(count):
        (bucket / f"step_{10**9 + number}.e1").mkdir()

    with pytest.raises(TrainerError, match="none of the newest 100 folders at") as raised:
        make_store(make_claim(tmp_path / "new"), backup=bucket).restore()
    assert raised.value.exit_code is ExitCode.CHECKPOINT_WRITE_FAILED


@planted
def test_backup_is_not_written_through_a_planted_path(
    tmp_path: Path, outside: Path, plant: Callable[[Path, Path], object]
) -> None:
    bucket = tmp_path / "bucket"
    store = save_one(tmp_path / "volume", bucket=bucket)
    plant(bucket / "step_00000020.e1", outside)
    saved = store.save(make_meta(20), shards(20))

    with pytest.raises(TrainerError, match="cannot copy"):
        store.back_up(saved)


@pytest.mark.parametrize("name", ["__0_0.distcp", "meta.json", "COMPLETE"])
@planted
def test_backup_does_not_overwrite_a_planted_file(
    tmp_path: Path, outside: Path, plant: Callable[[Path, Path], object], name: str
) -> None:
    bucket = tmp_path / "bucket"
    store = save_one(tmp_path / "volume", bucket=bucket)
    (bucket / "step_00000020.e1").mkdir()
    planted = bucket / "step_00000020.e1" / name
    plant(planted, outside)
    if planted.is_file() and not planted.is_symlink():
        return  # left by an interrupted copy
    saved = store.save(make_meta(20), shards(20))

    with pytest.raises(TrainerError, match="cannot copy"):
        store.back_up(saved)


def test_linked_folder_in_a_backup_is_not_read(tmp_path: Path, outside: Path) -> None:
    bucket = tmp_path / "bucket"
    save_one(tmp_path / "volume", bucket=bucket)
    folder = bucket / "step_00000010.e1"
    (folder / "own").symlink_to(outside)
    marker = json.loads((folder / "COMPLETE").read_text())
    digest = hashlib.sha256(b"secret").hexdigest()
    marker["files"]["own/secret"] = {"size": 6, "sha256": digest}
    (folder / "COMPLETE").write_text(json.dumps(marker))

    with pytest.raises(TrainerError, match="own is a link; remove"):
        make_store(make_claim(tmp_path / "new"), backup=bucket).restore()


@pytest.mark.parametrize("name", ["COMPLETE", "__0_0.distcp", "meta.json"])
@pytest.mark.parametrize("checks", [0, 1])
def test_compressed_object_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, checks: int
) -> None:
    bucket = tmp_path / "bucket"
    save_one(tmp_path / "volume", bucket=bucket)
    checked: list[str] = []

    class Compressing(LocalFileSystem):  # type: ignore[misc]
        """Reports a file as compressed after some checks, as if it had been replaced."""

        def info(self, path: str, **options: Any) -> Any:
            entry = super().info(path, **options)
            checked.append(path)
            is_late = checked.count(path) > (checks if name != "COMPLETE" else 0)
            is_compressed = path.endswith(name) and is_late
            return entry | ({"contentEncoding": "gzip"} if is_compressed else {})

        def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
            assert mode != "rb" or not path.endswith(name), "it is read"
            return super()._open(path, mode, **options)

    monkeypatch.setattr(backup, "_open", lambda _: (Compressing(), str(bucket)))
    store = make_store(make_claim(tmp_path / "new"), backup=bucket)
    with pytest.raises(TrainerError, match=f"{name} is compressed"):
        store.restore()


@pytest.mark.parametrize(
    "url",
    ["nowhere://user:hunter2secret@host/path", "nowhere://host/path?token=hunter2secret"],
)
def test_errors_show_no_credentials_of_the_url(tmp_path: Path, url: str) -> None:
    checkpoint = save_one(tmp_path).checkpoints[0]
    calls: list[Callable[[], object]] = [
        lambda: backup.check_readable(url, ""),
        lambda: next(backup.complete_backups(url, ""), None),
        lambda: backup.write_backup(checkpoint, url, lambda: None),
    ]
    for call in calls:
        with pytest.raises(TrainerError, match="nowhere://host") as raised:
            call()
        assert "hunter2secret" not in str(raised.value)


def nest(folder: Path, depth: int) -> None:
    """Make nested folders, whose path may be too long for one call."""
    descriptor = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=descriptor)
        inner = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(descriptor)


@pytest.mark.parametrize("name", ["step_00000020.e1", "export.e1.tmp"])
def test_deep_folder_of_killed_attempt_is_removed(tmp_path: Path, name: str) -> None:
    store = save_one(tmp_path / "ckpt")
    (tmp_path / "ckpt" / name).mkdir()
    nest(tmp_path / "ckpt" / name, 1_500)

    store.clean_up()

    assert not (tmp_path / "ckpt" / name).exists()


def test_folder_that_cannot_be_removed_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        remove_folder(tmp_path / "file")
    remove_folder(tmp_path / "file", ignore_errors=True)
