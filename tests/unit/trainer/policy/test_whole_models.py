"""Folders with missing tensors, which transformers would initialize randomly, are rejected."""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from torch import Tensor

from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.policy.model import load_model
from raggrpo_trainer.weights.export import folder_dtype
from support.builders.trainer.word_model import write_word_model

Change = Callable[[dict[str, Tensor]], dict[str, Tensor]]


def make_changed_model(folder: Path, change: Change, *, tied: bool = False) -> str:
    write_word_model(folder, ["yes", "no"], tied=tied)
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file, {"format": "pt"})
    return str(folder)


@pytest.mark.row("D3")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda all_: {f"_orig_mod.{n}": t for n, t in all_.items()}, "lacks 27 of the model's"),
        (lambda all_: {n: t for n, t in all_.items() if ".layers.1." not in n}, "layers.1."),
        (lambda all_: {n: t for n, t in all_.items() if n != "lm_head.weight"}, "lm_head.weight"),
    ],
    ids=["wrapper prefix", "missing layer", "no LM head"],
)
def test_missing_tensors_are_named_in_error(change: Change, message: str, tmp_path: Path) -> None:
    path = make_changed_model(tmp_path, change)
    with pytest.raises(TrainerError, match=message) as raised:
        load_model(path, "sdpa")
    assert raised.value.exit_code is ExitCode.PREFLIGHT_FAILED


def configured(**values: object) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | values))

    return change


def weights(content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / "model.safetensors").write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        configured(hidden_act="evil"), configured(layer_types=[5]),
        configured(num_attention_heads=3), configured(rope_parameters=[1]),
        configured(vocab_size=3), configured(model_type="evil"), weights(b""),
        weights(pickle.dumps([1])), lambda folder: os.truncate(folder / "model.safetensors", 5000),
    ],
)  # fmt: skip
def test_damaged_folder_is_reported(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    write_word_model(tmp_path, ["yes", "no"])
    damage(tmp_path)
    with pytest.raises(TrainerError, match=str(tmp_path)) as raised:
        load_model(str(tmp_path), "sdpa")
    assert raised.value.exit_code is ExitCode.PREFLIGHT_FAILED


def test_unknown_dtype_of_folder_is_reported(tmp_path: Path) -> None:
    write_word_model(tmp_path, ["yes", "no"])
    configured(dtype="evil")(tmp_path)
    with pytest.raises(TrainerError, match="cannot load the model in"):
        folder_dtype(tmp_path)


def test_tied_lm_head_is_not_reported_as_missing(tmp_path: Path) -> None:
    path = make_changed_model(tmp_path, dict, tied=True)
    assert not load_model(path, "sdpa").training
