"""Which files of a model folder, which others may write to, an export copies."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raggrpo_trainer.weights.export import write_folder

NAMES = ["config.json", "modeling_own.py", "tokenizer.json", "vocab.txt"]


class Model:
    """A model that saves nothing itself."""

    def save_pretrained(self, folder: Path, **_: Any) -> None:
        folder.mkdir()


def export(source: Path, folder: Path) -> list[str]:
    model: Any = Model()
    write_folder(model, [], source, folder, writes=True)
    return sorted(each.name for each in folder.iterdir())


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in (*NAMES, "model.safetensors", "model.safetensors.index.json", "README"):
        (folder / name).write_text("{}")
    return folder


def test_export_copies_settings_and_code(source: Path, tmp_path: Path) -> None:
    assert export(source, tmp_path / "export") == NAMES


def link(path: Path) -> None:
    outside = path.parent.parent / "secret"
    outside.write_text("secret")
    path.symlink_to(outside)


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 50 << 30)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [link, sparse, device, os.mkfifo, Path.mkdir])
@pytest.mark.parametrize("name", [".x.json", ".x.py"])
def test_hidden_files_are_not_copied(
    source: Path, tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    make(source / name)
    assert export(source, tmp_path / "export") == NAMES


@pytest.mark.parametrize("make", [link, sparse, device, os.mkfifo])
@pytest.mark.parametrize("name", ["x.json", "x.py", "x.txt"])
def test_unsuitable_files_are_reported(
    source: Path, tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    make(source / name)
    with pytest.raises(OSError, match=f"{name} cannot be copied: ") as raised:
        export(source, tmp_path / "export")
    assert str(source / name) in str(raised.value)
    assert not (tmp_path / "export" / name).exists()
