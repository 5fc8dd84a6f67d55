"""Checkpoint folders and backup buckets whose files were written by an attacker."""

import json
import os
import pickle
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from raggrpo_api.foreign_files import UnsuitableFile, read_limited
from raggrpo_trainer.checkpoint.folder import Checkpoint
from raggrpo_trainer.checkpoint.identity import FileDigests
from raggrpo_trainer.checkpoint.selection import select_checkpoint
from raggrpo_trainer.checkpoint.store import CheckpointStore
from raggrpo_trainer.errors import TrainerError
from support.builders.trainer.checkpoints import is_whole, make_claim, make_meta, make_store, shards
from support.hostile.memory import peak_memory

Attack = Callable[[Path, Path], object]
"""Changes a checkpoint folder; the second folder is outside and must not change."""

LIMIT_SECONDS = 30


@pytest.fixture(autouse=True)
def limit() -> Iterator[None]:
    """Fail instead of waiting for a pipe or reading a device forever."""

    def expired(*_: object) -> None:
        pytest.fail(f"did not return within {LIMIT_SECONDS} s")

    previous = signal.signal(signal.SIGALRM, expired)
    signal.alarm(LIMIT_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)


def read_marker(folder: Path) -> dict[str, Any]:
    marker: dict[str, Any] = json.loads((folder / "COMPLETE").read_text())
    return marker


def with_fields(**changes: object) -> Attack:
    def attack(folder: Path, _outside: Path) -> None:
        (folder / "COMPLETE").write_text(json.dumps(read_marker(folder) | changes))

    return attack


def with_file(name: str, **record: object) -> Attack:
    """List one more file in COMPLETE; `{outside}` in its name is the folder outside."""

    def attack(folder: Path, outside: Path) -> None:
        marker = read_marker(folder)
        entry = {"size": 0, "sha256": "0" * 64} | record
        marker["files"][name.replace("{outside}", str(outside))] = entry
        (folder / "COMPLETE").write_text(json.dumps(marker))

    return attack


def with_content(name: str, content: bytes) -> Attack:
    return lambda folder, _outside: (folder / name).write_bytes(content)


def as_pipe(name: str) -> Attack:
    def attack(folder: Path, _outside: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return attack


def as_folder(name: str) -> Attack:
    def attack(folder: Path, _outside: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).mkdir()

    return attack


def as_link(name: str, target: str) -> Attack:
    def attack(folder: Path, outside: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target.replace("{outside}", str(outside)))

    return attack


def as_hard_link(name: str) -> Attack:
    def attack(folder: Path, outside: Path) -> None:
        (folder / name).unlink()
        (folder / name).hardlink_to(outside / "secret")

    return attack


def with_size_of_device(name: str, device: str) -> Attack:
    """Replace a file by a link to a device, and its size in COMPLETE by the device's."""

    def attack(folder: Path, outside: Path) -> None:
        with_file(name, size=0)(folder, outside)
        as_link(name, device)(folder, outside)

    return attack


class Planted:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._path,)


def with_pickle(name: str) -> Attack:
    def attack(folder: Path, outside: Path) -> None:
        (folder / name).write_bytes(pickle.dumps(Planted(outside / "planted")))

    return attack


def as_linked_folder(folder: Path, outside: Path) -> None:
    copy = outside.with_name("copy")
    shutil.move(folder, copy)
    shutil.rmtree(copy / "fence", ignore_errors=True)
    (copy / "__0_0.distcp").write_bytes(b"x")
    folder.symlink_to(copy)


NAMES = {
    "absolute": "{outside}/planted",
    "parent": "../../outside/planted",
    "parent in the middle": "a/../../../outside/planted",
    "parent at the end": "a/..",
    "parent with a dot": "./../outside/planted",
    "dots only": "..",
    "dot": ".",
    "empty": "",
    "slash": "/",
    "double slash": "//etc/hostname",
    "double slash inside": "a//b",
    "trailing slash": "meta.json/",
    "alias of a file": "./meta.json",
    "NUL": "a\x00b",
    "newline": "a\nb",
    "carriage return": "a\rb",
    "escape sequence": "\x1b[2Ja",
    "delete": "a\x7fb",
    "backslash": "..\\..\\outside\\planted",
    "drive": "C:\\planted",
    "marker": "COMPLETE",
    "below the marker": "COMPLETE/x",
    "rejection": "REJECTED",
    "below a file": "meta.json/x",
    "too long": "n" * 5000,
    "too deep": "/".join("d" * 3000),
    "direction override": "a\u202eb",
    "surrogate": "a\ud800b",
    "URL": "file:///etc/hostname",
}
ATTACKS: dict[str, Attack] = {
    **{f"name: {title}": with_file(name) for title, name in NAMES.items()},
    "step: text": with_fields(step="twenty"),
    "step: negative": with_fields(step=-1),
    "step: huge": lambda folder, _outside: (folder / "COMPLETE").write_text(
        (folder / "COMPLETE").read_text().replace('"step": 20', f'"step": {"9" * 5000}')
    ),
    "step: fraction": with_fields(step=20.5),
    "step: null": with_fields(step=None),
    "epoch: list": with_fields(epoch=[1]),
    "score: text": with_fields(score="best"),
    "score: NaN": with_fields(score=float("nan")),
    "score: infinite": with_fields(score=float("inf")),
    "files: null": with_fields(files=None),
    "files: list": with_fields(files=["meta.json"]),
    "files: empty": with_fields(files={}),
    "files: sizes only": with_fields(files={"meta.json": 3}),
    "size: negative": with_file("meta.json", size=-1),
    "size: too large": with_file("meta.json", size=2**64),
    "size: wrong": with_file("__0_0.distcp", size=2**40),
    "digest: short": with_file("meta.json", sha256="00"),
    "digest: newline": with_file("meta.json", sha256="0" * 64 + "\n"),
    "digest: upper case": with_file("meta.json", sha256="F" * 64),
    "digest: number": with_file("meta.json", sha256=0),
    "missing file": with_file("__9_0.distcp", size=10),
    "COMPLETE: empty": with_content("COMPLETE", b""),
    "COMPLETE: list": with_content("COMPLETE", b"[]"),
    "COMPLETE: not UTF-8": with_content("COMPLETE", b'{"step": "\xff\xfe"}'),
    "COMPLETE: UTF-16": with_content("COMPLETE", "{}".encode("utf-16")),
    "COMPLETE: NUL": with_content("COMPLETE", bytes(100)),
    "COMPLETE: deep": with_content("COMPLETE", b"[" * 200_000),
    "COMPLETE: deep objects": with_content("COMPLETE", b'{"files":' * 100_000),
    "COMPLETE: huge": with_content("COMPLETE", b" " * (5 << 20)),
    "COMPLETE: a pickle": with_pickle("COMPLETE"),
    "COMPLETE: pipe": as_pipe("COMPLETE"),
    "COMPLETE: folder": as_folder("COMPLETE"),
    "COMPLETE: link": as_link("COMPLETE", "{outside}/secret"),
    "COMPLETE: endless device": as_link("COMPLETE", "/dev/zero"),
    "COMPLETE: link to itself": as_link("COMPLETE", "COMPLETE"),
    "meta.json: not UTF-8": with_content("meta.json", b"\xff"),
    "meta.json: other content": with_content("meta.json", b"{}"),
    "meta.json: a pickle": with_pickle("meta.json"),
    "meta.json: pipe": as_pipe("meta.json"),
    "meta.json: folder": as_folder("meta.json"),
    "meta.json: link": as_link("meta.json", "{outside}/secret"),
    "meta.json: device": with_size_of_device("meta.json", "/dev/zero"),
    "shard: a pickle": with_pickle("__0_0.distcp"),
    "shard: pipe": as_pipe("__0_0.distcp"),
    "shard: folder": as_folder("__0_0.distcp"),
    "shard: link": as_link("__0_0.distcp", "{outside}/secret"),
    "shard: hard link": as_hard_link("__0_0.distcp"),
    "shard: endless device": with_size_of_device("__0_0.distcp", "/dev/zero"),
    "shard: null device": with_size_of_device("__0_0.distcp", "/dev/null"),
    "shard: terminal": with_size_of_device("__0_0.distcp", "/dev/tty"),
    "shard: link to nothing": as_link("__0_0.distcp", "{outside}/missing"),
    "shard: same size": with_content("__0_0.distcp", bytes(3000)),
    "folder: link": as_linked_folder,
}


def make_outside(path: Path) -> Path:
    outside = path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    return outside


def is_untouched(outside: Path) -> bool:
    return {p.name: p.read_text() for p in outside.iterdir()} == {"secret": "secret"}


def save_two(path: Path, *, backup: Path | None = None) -> CheckpointStore:
    store = make_store(make_claim(path), backup=backup)
    for step in (10, 20):
        saved = store.save(make_meta(step), shards(step))
        if backup:
            store.back_up(saved)
    return store


def usable(checkpoint: Checkpoint) -> bool:
    try:
        checkpoint.verify()
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_hostile_checkpoint_is_not_used(tmp_path: Path, attack: Attack) -> None:
    outside = make_outside(tmp_path)
    path = tmp_path / "volume"
    save_two(path)
    attack(path / "step_00000020.e1", outside)

    resumed = make_store(make_claim(path, attempt=2))

    assert [c.marker.step for c in resumed.checkpoints if usable(c)] == [10]
    selected = select_checkpoint(path)
    assert not usable(selected) or selected.marker.step == 10
    reasons = [each.reason for each in resumed.skipped]
    assert all(reason.isprintable() and len(reason) < 1000 for reason in reasons)
    assert is_untouched(outside)


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_hostile_backup_is_not_used(tmp_path: Path, attack: Attack) -> None:
    outside = make_outside(tmp_path)
    save_two(tmp_path / "volume", backup=tmp_path / "backup")
    attack(tmp_path / "backup" / "step_00000020.e1", outside)

    restored = make_store(make_claim(tmp_path / "new"), backup=tmp_path / "backup").restore()

    assert restored is not None
    assert restored.marker.step == 10
    assert is_whole(restored)
    folders = [p.name for p in (tmp_path / "new").iterdir()]
    assert sorted(folders) == ["fence", restored.folder.name]
    assert is_untouched(outside)


FENCE: dict[str, Attack] = {
    "list": with_content("file", b"[]"),
    "text": with_content("file", b'"x"'),
    "empty": with_content("file", b""),
    "not UTF-8": with_content("file", b"\xff"),
    "other fields": with_content("file", b'{"a": 1}'),
    "deep": with_content("file", b"[" * 100_000),
    "numbers": with_content("file", b"[1, [2]]"),
    "huge": with_content("file", b" " * (2 << 20)),
    "pipe": as_pipe("file"),
    "folder": as_folder("file"),
    "link": as_link("file", "{outside}/secret"),
}


@pytest.mark.parametrize("attack", FENCE.values(), ids=FENCE.keys())
@pytest.mark.parametrize("name", ["00000001", "00000001.accepts"])
def test_hostile_claim_is_reported(tmp_path: Path, attack: Attack, name: str) -> None:
    outside = make_outside(tmp_path)
    path = tmp_path / "volume"
    save_two(path)
    file = path / "fence" / name
    attack(file.parent, outside)
    file.unlink()
    (file.parent / "file").rename(file)
    if name.endswith("accepts") and attack is FENCE["list"]:
        return  # a list of no checkpoints is valid

    with pytest.raises(TrainerError, match=r"fence/00000001|cannot claim") as raised:
        make_claim(path, attempt=2)
    assert "Traceback" not in str(raised.value)
    assert is_untouched(outside)


@pytest.mark.parametrize("attack", FENCE.values(), ids=FENCE.keys())
def test_hostile_digest_cache_is_ignored(tmp_path: Path, attack: Attack) -> None:
    outside = make_outside(tmp_path)
    attack(tmp_path, outside)
    (tmp_path / "hashed").write_text("x")

    with FileDigests(tmp_path / "file") as digests:
        [digest] = digests.of([tmp_path / "hashed"])

    assert len(digest) == 64
    assert is_untouched(outside)


def test_reason_of_rejection_is_read_within_limits(tmp_path: Path) -> None:
    store = save_two(tmp_path)
    os.mkfifo(store.checkpoints[0].folder / "REJECTED")

    resumed = make_store(make_claim(tmp_path, attempt=2))

    assert [c.marker.step for c in resumed.checkpoints] == [10]


def test_small_file_is_read_with_little_memory_at_high_limit(tmp_path: Path) -> None:
    file = tmp_path / "small"
    file.write_bytes(b"x" * 3_000_000)

    def read() -> None:
        assert len(read_limited(file, 1 << 28)) == 3_000_000

    assert peak_memory(read) < 8_000_000
    with pytest.raises(UnsuitableFile, match="more than 2,999,999 bytes"):
        read_limited(file, 2_999_999)
