from collections.abc import Callable
from pathlib import Path

import pytest

from checkpoint_support import a_claim, a_store
from raggrpo_trainer.errors import TrainerError


def a_model(version: int) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "config.json").write_text(str(version))

    return write


def exported(path: Path) -> int:
    return int((path / "export" / "config.json").read_text())


def test_an_export_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    store = a_store(a_claim(tmp_path))
    store.export(a_model(1))

    assert store.export(a_model(2)) == tmp_path / "export"
    assert exported(tmp_path) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["export", "fence"]


def test_a_failing_or_superseded_export_leaves_the_old_one(tmp_path: Path) -> None:
    store = a_store(a_claim(tmp_path))
    store.export(a_model(1))

    def breaks(folder: Path) -> None:
        a_model(2)(folder)
        raise OSError("no more")

    with pytest.raises(TrainerError, match=r"cannot write .*export.e1.tmp \(EIO\): no more"):
        store.export(breaks)
    assert exported(tmp_path) == 1
    successor = a_store(a_claim(tmp_path, attempt=2))
    with pytest.raises(TrainerError, match="taken over"):
        store.export(a_model(3))
    assert exported(tmp_path) == 1

    successor.clean_up()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["export", "fence"]
