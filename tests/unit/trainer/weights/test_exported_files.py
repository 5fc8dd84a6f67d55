"""Files that an export copies from a model folder, which others may write to."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from raggrpo_api.model_folder import TEMPLATES
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.weights.export import folder_dtype, write_folder

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


def test_export_copies_additional_chat_templates(source: Path, tmp_path: Path) -> None:
    (source / TEMPLATES).mkdir()
    for name in ("rag.jinja", ".hidden.jinja", "notes.md"):
        (source / TEMPLATES / name).write_text("{{ messages }}")

    assert export(source, tmp_path / "export") == sorted([*NAMES, TEMPLATES])

    copied = sorted((tmp_path / "export" / TEMPLATES).iterdir())
    assert [each.name for each in copied] == [".hidden.jinja", "rag.jinja"]  # as transformers loads
    assert {each.read_text() for each in copied} == {"{{ messages }}"}


def test_linked_folder_of_chat_templates_is_reported(source: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.jinja").write_text("secret")
    (source / TEMPLATES).symlink_to(outside)
    with pytest.raises(OSError, match=r"secret.jinja cannot be copied: .*outside of its folder"):
        export(source, tmp_path / "export")


def test_chat_templates_of_the_hub_cache_are_copied(source: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshots" / "commit"
    snapshot.parent.mkdir()
    source.rename(snapshot)
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "sha").write_text("{{ messages }}")
    (snapshot / TEMPLATES).mkdir()
    (snapshot / TEMPLATES / "rag.jinja").symlink_to("../../../blobs/sha")

    export(snapshot, tmp_path / "export")

    copied = tmp_path / "export" / TEMPLATES / "rag.jinja"
    assert not copied.is_symlink()
    assert copied.read_text() == "{{ messages }}"


def link(path: Path) -> None:
    outside = path.parent.parent.parent / "secret"
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
@pytest.mark.parametrize("name", ["x.json", "x.py", "x.txt", "additional_chat_templates/x.jinja"])
def test_unsuitable_files_are_reported(
    source: Path, tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    (source / name).parent.mkdir(exist_ok=True)
    make(source / name)
    with pytest.raises(OSError, match=f"{name} cannot be copied: ") as raised:
        export(source, tmp_path / "export")
    assert str(source / name) in str(raised.value)
    assert not (tmp_path / "export" / name).exists()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_not_exported(
    source: Path, tmp_path: Path, value: float
) -> None:
    model: Any = Model()
    values = {"good": torch.ones(3), "bad": torch.tensor([1.0, value]), "last": torch.ones(1)}
    tensors = iter(values.items())

    with pytest.raises(TrainerError, match="tensor bad contains NaN or infinity") as raised:
        write_folder(model, tensors, source, tmp_path / "export", writes=True)

    assert raised.value.exit_code is ExitCode.NON_FINITE
    assert next(tensors, None) is None  # the other ranks wait for a rank that stops earlier
    assert not (tmp_path / "export").exists()


@pytest.mark.parametrize("dtype", ["int8", "bool", "int64", "complex64", "float8_e4m3fn"])
def test_type_of_weights_that_cannot_hold_them_is_rejected(source: Path, dtype: str) -> None:
    (source / "config.json").write_text(f'{{"model_type": "llama", "dtype": "{dtype}"}}')

    with pytest.raises(TrainerError, match=f"config.json: dtype is torch.{dtype}"):
        folder_dtype(source)
