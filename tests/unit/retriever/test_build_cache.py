"""Cached folders are complete or absent, even if builds fail or run concurrently."""

import multiprocessing
import os
import threading
from pathlib import Path

import pytest

from raggrpo_retriever.build_cache import COMPLETE, get_or_build, is_complete, write_atomically


def make_builder(text: str = "whole") -> object:
    return lambda folder, _: (folder / "data").write_text(text)


def fail_build(folder: Path, parts: Path) -> None:
    raise AssertionError("built again")


def test_complete_index_is_reused(tmp_path: Path) -> None:
    folder = get_or_build(tmp_path, "key", make_builder())
    assert (folder, (folder / "data").read_text()) == (tmp_path / "key", "whole")
    assert get_or_build(tmp_path, "key", fail_build) == folder
    assert [each.name for each in tmp_path.iterdir()] == ["key"]


def test_failed_build_does_not_leave_complete_folder(tmp_path: Path) -> None:
    def fail(folder: Path, parts: Path) -> None:
        (folder / "data").write_text("half")
        (parts / "0").write_text("saved by the first build")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        get_or_build(tmp_path, "key", fail)
    assert not (tmp_path / "key").exists()

    def resume(folder: Path, parts: Path) -> None:
        (folder / "data").write_text((parts / "0").read_text())

    assert (
        get_or_build(tmp_path, "key", resume) / "data"
    ).read_text() == "saved by the first build"


@pytest.mark.parametrize("name", ["key", "key.building"])
def test_links_in_index_folder_are_not_followed(tmp_path: Path, name: str) -> None:
    root, outside = tmp_path / "indexes", tmp_path / "outside"
    for each in (root, outside):
        each.mkdir()
    (root / name).symlink_to(outside)
    with pytest.raises(OSError, match=f"{name} is a link, which is not followed"):
        get_or_build(root, "key", make_builder())
    assert not list(outside.iterdir())


@pytest.mark.parametrize(
    "damage", ["marker", "missing", "short", "foreign", "deep", "elsewhere", "pipe", "link"]
)
def test_damaged_index_folder_is_rebuilt(tmp_path: Path, damage: str) -> None:
    folder = get_or_build(tmp_path, "key", make_builder())
    match damage:
        case "marker":
            (folder / COMPLETE).unlink()
        case "missing":
            (folder / "data").unlink()
        case "short":
            (folder / "data").write_text("wh")
        case "foreign":
            (folder / COMPLETE).write_text("[]")
        case "deep":
            (folder / COMPLETE).write_text("[" * 100_000)
        case "elsewhere":
            (folder / COMPLETE).write_text('{"../key/data": 5}')
        case "pipe":
            (folder / COMPLETE).unlink()
            os.mkfifo(folder / COMPLETE)
        case "link":
            (folder / "data").rename(folder / "other")
            (folder / "data").symlink_to("other")
    assert not is_complete(folder)
    assert (
        get_or_build(tmp_path, "key", make_builder("rebuilt")) / "data"
    ).read_text() == "rebuilt"
    assert [each.name for each in tmp_path.iterdir()] == ["key"]


@pytest.mark.row("D8")
def test_concurrent_builds_use_first_published_folder(tmp_path: Path) -> None:
    barrier = threading.Barrier(2)

    def build_concurrently(folder: Path, parts: Path) -> None:
        (folder / "data").write_text("whole")
        barrier.wait(10)

    result: list[Path] = []
    threads = [
        threading.Thread(
            target=lambda: result.append(get_or_build(tmp_path, "key", build_concurrently))
        )
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert result == [tmp_path / "key"] * 2
    assert is_complete(tmp_path / "key")


def test_slower_build_uses_folder_published_first(tmp_path: Path) -> None:
    def build_slowly(folder: Path, parts: Path) -> None:
        get_or_build(tmp_path, "key", make_builder("the other's"))  # removes its temporary folder
        (folder / "data").write_text("late")

    assert (get_or_build(tmp_path, "key", build_slowly) / "data").read_text() == "the other's"
    assert is_complete(tmp_path / "key")


def _build_and_die(root: str) -> None:
    def die(folder: Path, parts: Path) -> None:
        (folder / "data").write_text("half")
        import os

        os._exit(9)

    get_or_build(Path(root), "key", die)


def test_killed_build_does_not_leave_complete_folder(tmp_path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(
        target=_build_and_die, args=(str(tmp_path),)
    )
    process.start()
    process.join(20)
    assert process.exitcode == 9
    assert not (tmp_path / "key").exists()
    assert (get_or_build(tmp_path, "key", make_builder()) / "data").read_text() == "whole"


def test_atomic_index_write_is_complete_or_absent(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(tmp_path / "part", fail)
    assert not (tmp_path / "part").exists()
    write_atomically(tmp_path / "part", lambda path: path.write_text("whole") and None)
    assert (tmp_path / "part").read_text() == "whole"
