"""What is kept is whole or not there, however builds end and however many run at once."""

import multiprocessing
import threading
from pathlib import Path

import pytest

from raggrpo_retriever.build_cache import COMPLETE, get_or_build, is_complete, write_atomically


def writing(text: str = "whole") -> object:
    return lambda folder, _: (folder / "data").write_text(text)


def never(folder: Path, parts: Path) -> None:
    raise AssertionError("built again")


def test_it_is_built_once(tmp_path: Path) -> None:
    folder = get_or_build(tmp_path, "key", writing())
    assert (folder, (folder / "data").read_text()) == (tmp_path / "key", "whole")
    assert get_or_build(tmp_path, "key", never) == folder
    assert [each.name for each in tmp_path.iterdir()] == ["key"]


def test_a_build_that_fails_leaves_nothing_that_looks_whole(tmp_path: Path) -> None:
    def failing(folder: Path, parts: Path) -> None:
        (folder / "data").write_text("half")
        (parts / "0").write_text("kept for the next")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        get_or_build(tmp_path, "key", failing)
    assert not (tmp_path / "key").exists()

    def continuing(folder: Path, parts: Path) -> None:
        (folder / "data").write_text((parts / "0").read_text())

    assert (get_or_build(tmp_path, "key", continuing) / "data").read_text() == "kept for the next"


@pytest.mark.parametrize("damage", ["marker", "missing", "short", "foreign"])
def test_a_damaged_folder_is_built_anew(tmp_path: Path, damage: str) -> None:
    folder = get_or_build(tmp_path, "key", writing())
    match damage:
        case "marker":
            (folder / COMPLETE).unlink()
        case "missing":
            (folder / "data").unlink()
        case "short":
            (folder / "data").write_text("wh")
        case "foreign":
            (folder / COMPLETE).write_text("[]")
    assert not is_complete(folder)
    assert (get_or_build(tmp_path, "key", writing("anew")) / "data").read_text() == "anew"
    assert [each.name for each in tmp_path.iterdir()] == ["key"]


@pytest.mark.row("D8")
def test_of_two_that_build_at_once_the_first_publishes_and_both_use_it(tmp_path: Path) -> None:
    both = threading.Barrier(2)

    def meeting(folder: Path, parts: Path) -> None:
        (folder / "data").write_text("whole")
        both.wait(10)

    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(get_or_build(tmp_path, "key", meeting)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert found == [tmp_path / "key"] * 2
    assert is_complete(tmp_path / "key")


def test_one_that_is_overtaken_uses_what_the_other_built(tmp_path: Path) -> None:
    def overtaken(folder: Path, parts: Path) -> None:
        get_or_build(tmp_path, "key", writing("the other's"))  # which clears up behind itself
        (folder / "data").write_text("late")

    assert (get_or_build(tmp_path, "key", overtaken) / "data").read_text() == "the other's"
    assert is_complete(tmp_path / "key")


def _killed_while_building(root: str) -> None:
    def dying(folder: Path, parts: Path) -> None:
        (folder / "data").write_text("half")
        import os

        os._exit(9)

    get_or_build(Path(root), "key", dying)


def test_a_killed_build_leaves_nothing_that_looks_whole(tmp_path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(
        target=_killed_while_building, args=(str(tmp_path),)
    )
    process.start()
    process.join(20)
    assert process.exitcode == 9
    assert not (tmp_path / "key").exists()
    assert (get_or_build(tmp_path, "key", writing()) / "data").read_text() == "whole"


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    def failing(path: Path) -> None:
        path.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(tmp_path / "part", failing)
    assert not (tmp_path / "part").exists()
    write_atomically(tmp_path / "part", lambda path: path.write_text("whole") and None)
    assert (tmp_path / "part").read_text() == "whole"
