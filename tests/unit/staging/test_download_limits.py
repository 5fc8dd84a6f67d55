"""Downloads from servers and volumes that others control, without a network."""

import os
import shutil
import threading
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest

from raggrpo_api.fields.source import ImageSource
from raggrpo_api.trainer.staging import StagingReason
from raggrpo_staging import retries
from raggrpo_staging.download import Downloader, draft_of, require_folder
from raggrpo_staging.draft import PART_BYTES, Draft
from raggrpo_staging.failures import StagingFailed
from raggrpo_staging.progress import ProgressCounter
from raggrpo_staging.remote import Remote, RemoteFile, Snapshot
from support.hostile.memory import peak_memory

Usage = namedtuple("Usage", ("total", "used", "free"))
MIB = 2**20


class EndlessRemote(Remote):
    """A server whose files do not end."""

    sent = 0

    def snapshot(self, revision: str) -> Snapshot:
        raise NotImplementedError

    def chunks(self, _file: RemoteFile, _start: int, _stop: int | None) -> Iterator[bytes]:
        while True:
            self.sent += MIB
            yield bytes(MIB)


class SilentRemote(EndlessRemote):
    """A server whose files are empty."""

    def chunks(self, _file: RemoteFile, _start: int, _stop: int | None) -> Iterator[bytes]:
        return iter(())


def download(folder: Path, remote: Remote, file: RemoteFile) -> StagingFailed:
    work = folder / ".partial"
    with pytest.raises(StagingFailed) as raised:
        Downloader(remote, ProgressCounter(None), threading.Event()).download([file], folder, work)
    return raised.value


@pytest.fixture(autouse=True)
def _no_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "TRIES", 1)


def test_file_of_unknown_size_leaves_free_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(100 * MIB, 90 * MIB, 10 * MIB))
    file = RemoteFile(path="rows.jsonl", location="https://host/rows.jsonl", size=None)
    remote = EndlessRemote()

    failure = download(tmp_path, remote, file)

    assert failure.reason is StagingReason.DISK_FULL
    assert "whose size the server does not report" in str(failure)
    assert remote.sent == 10 * MIB
    assert not draft_of(file, tmp_path / ".partial").path.exists()


def test_file_ends_at_its_size(tmp_path: Path) -> None:
    file = RemoteFile(path="rows.jsonl", location="https://host/rows.jsonl", size=3 * MIB + 1)
    remote = EndlessRemote()
    failure = download(tmp_path, remote, file)
    assert failure.reason is StagingReason.UNREACHABLE
    assert remote.sent <= 8 * MIB


@pytest.mark.parametrize(
    "make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/etc/hosts")]
)
@pytest.mark.parametrize("name", ["target", "draft", "journal"])
def test_special_files_of_volume_are_rejected(tmp_path: Path, name: str, make: object) -> None:
    file = RemoteFile(path="rows.jsonl", location="rows.jsonl", size=7)
    draft = draft_of(file, tmp_path / ".partial")
    path = {"target": tmp_path / file.path, "draft": draft.path, "journal": draft.journal}[name]
    path.parent.mkdir(exist_ok=True)
    if name == "journal":
        draft.path.touch()
    make(path)  # type: ignore[operator]

    failure = download(tmp_path, EndlessRemote(), file)

    assert failure.reason is StagingReason.FOLDER_NOT_WRITABLE
    assert str(tmp_path) in str(failure)


@pytest.mark.parametrize("size", [None, 0, 1, PART_BYTES, 3 * PART_BYTES + 1])
@pytest.mark.parametrize("marks", [b"", b"1", b"\0001", b"1111", b"1" * 1000])
def test_bytes_on_disk_are_those_of_marked_parts(
    tmp_path: Path, size: int | None, marks: bytes
) -> None:
    draft = Draft(tmp_path / "draft", size)
    draft.path.touch()
    draft.journal.write_bytes(marks)
    missing = sum((part.stop or 0) - part.start for part in draft.missing())
    assert draft.bytes_on_disk() == (size or 0) - missing


def test_parts_of_huge_file_need_no_memory(tmp_path: Path) -> None:
    file = RemoteFile(path="rows.jsonl", location="rows.jsonl", size=10**15)
    work = tmp_path / ".partial"
    remote = SilentRemote()

    def run() -> None:
        with pytest.raises(StagingFailed, match="ended after"):
            Downloader(remote, ProgressCounter(None), threading.Event()).download(
                [file], tmp_path, work
            )

    assert peak_memory(run) < 64 * MIB


@pytest.mark.parametrize(
    "paths", [["a.json", "a.json"], ["a", "a/b.json"], ["a/b/c.json", "x", "a/b"]]
)
def test_file_is_not_another_one(paths: list[str]) -> None:
    with pytest.raises(StagingFailed, match="is two files, or a file and a folder") as raised:
        require_folder(ImageSource("registry.example.com", "model"), paths)
    assert raised.value.reason is StagingReason.UNSUITABLE_CONTENT


def test_bytes_on_disk_of_huge_file_need_no_memory(tmp_path: Path) -> None:
    draft = Draft(tmp_path / "draft", 10**15)
    draft.path.touch()
    draft.journal.write_bytes(b"1")
    assert draft.bytes_on_disk() == PART_BYTES
