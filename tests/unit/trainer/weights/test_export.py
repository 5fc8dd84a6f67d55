from collections.abc import Callable
from pathlib import Path

import pytest

from raggrpo_trainer.errors import TrainerError
from support.builders.trainer.checkpoints import make_claim, make_store
from support.fakes.unexpected_exit import count_calls, kill_at

NAMES = ["config.json", *(f"model-{i}.safetensors" for i in range(20))]


def make_model(version: int) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        for name in NAMES:
            (folder / name).write_text(str(version))

    return write


def exported(path: Path) -> int:
    files = {p.name: int(p.read_text()) for p in (path / "export").iterdir()}
    version = files["config.json"]
    assert files == dict.fromkeys(NAMES, version)
    return version


def test_export_replaces_previous_export(tmp_path: Path) -> None:
    store = make_store(make_claim(tmp_path))
    store.export(make_model(1))
    assert store.export(make_model(2)) == tmp_path / "export"
    assert exported(tmp_path) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["export", "fence"]


def test_previous_export_is_kept_when_export_fails_or_is_superseded(tmp_path: Path) -> None:
    store = make_store(make_claim(tmp_path))
    store.export(make_model(1))

    def breaks(folder: Path) -> None:
        make_model(2)(folder)
        raise OSError("no more")

    with pytest.raises(TrainerError, match=r"cannot write .*export.e1.tmp \(EIO\): no more"):
        store.export(breaks)
    assert exported(tmp_path) == 1
    successor = make_store(make_claim(tmp_path, attempt=2))
    with pytest.raises(TrainerError, match="was claimed by"):
        store.export(make_model(3))
    assert exported(tmp_path) == 1

    successor.clean_up()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["export", "fence"]


def export_version_2(path: Path) -> None:
    make_store(make_claim(path, attempt=2)).export(make_model(2))


@pytest.mark.parametrize("point", range(20))
def test_kill_during_export_does_not_leave_incomplete_model(tmp_path: Path, point: int) -> None:
    path, rehearsal = tmp_path / "ckpt", tmp_path / "rehearsal"
    for folder in (path, rehearsal):
        make_store(make_claim(folder)).export(make_model(1))
    calls = count_calls(export_version_2, rehearsal)

    kill_at((point + 0.5) / 20, calls, export_version_2, path)

    assert not (path / "export").exists() or exported(path) in (1, 2)
    last = make_store(make_claim(path, attempt=3))
    last.clean_up()
    last.export(make_model(3))
    assert exported(path) == 3
    assert sorted(p.name for p in path.iterdir()) == ["export", "fence"]
