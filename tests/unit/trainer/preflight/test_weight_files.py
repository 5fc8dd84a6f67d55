"""Preflight reads the weights that transformers loads, also if a folder has others."""

import json
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM

from raggrpo_api.model_folder import is_weight_file, loaded_files
from raggrpo_trainer.preflight import weights
from raggrpo_trainer.preflight.weights import Unreadable, weight_files, weight_shapes
from support.builders.trainer.policies import write_model

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
NAME = "model.norm.weight"


def specify(folder: Path, name: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"transformers_weights": name}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model with model.safetensors, and an index of a file with other values."""
    model = write_model(tmp_path / "model")
    whole = load_file(model / SINGLE)
    other = {name: tensor + 1 for name, tensor in whole.items()}
    save_file(other, model / "shard.safetensors", {"format": "pt"})
    index = {"metadata": {}, "weight_map": dict.fromkeys(whole, "shard.safetensors")}
    (model / INDEX).write_text(json.dumps(index))
    return model


@pytest.mark.parametrize(
    ("removed", "specified", "expected"),
    [
        ("", "", SINGLE),
        (SINGLE, "", "shard.safetensors"),
        ("", "shard.safetensors", "shard.safetensors"),
        ("", INDEX, "shard.safetensors"),
        (INDEX, SINGLE, SINGLE),
    ],
)
def test_weights_that_transformers_loads_are_read(
    folder: Path, removed: str, specified: str, expected: str
) -> None:
    if removed:
        (folder / removed).unlink()
    if specified:
        specify(folder, specified)

    assert weight_files(folder) == [folder / expected]

    assert [each for each in loaded_files(folder) if is_weight_file(each)] == [folder / expected]
    loaded = AutoModelForCausalLM.from_pretrained(folder).state_dict()[NAME].numpy()
    assert (loaded == load_file(folder / expected)[NAME]).all()


@pytest.mark.parametrize(
    ("removed", "specified", "message"),
    [
        ([SINGLE, INDEX], "", f"lacks {INDEX}"),
        ([SINGLE, INDEX, "shard.safetensors"], "", "has no .safetensors files"),
        ([], "other.safetensors", "lacks"),
        ([SINGLE, INDEX], "pytorch_model.bin.index.json", "convert the .bin files with `python"),
        ([], ".shard.safetensors", "instead of a file name"),
    ],
)
def test_weights_that_transformers_cannot_load_are_rejected(
    folder: Path, removed: list[str], specified: str, message: str
) -> None:
    for each in removed:
        (folder / each).unlink()
    if specified:
        specify(folder, specified)
    if specified.endswith(".bin.index.json"):
        shard = "pytorch_model-00001-of-00001.bin"
        (folder / shard).write_bytes(b"")
        (folder / specified).write_text(json.dumps({"metadata": {}, "weight_map": {NAME: shard}}))
    with pytest.raises(Unreadable, match=message):
        weight_shapes(folder)


WHOLE = {"dtype": "F16", "shape": [2], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"dtype": "os.system"}, "'b' has unknown dtype 'os.system'"),
        ({"dtype": 7}, "'b' has unknown dtype 7"),
        ({"dtype": None}, "'b' has unknown dtype None"),
        ({"dtype": ["F16"]}, r"'b' has unknown dtype \['F16'\]"),
        ({"data_offsets": [0, 4]}, "'b' starts at byte 0, not 4"),
        ({"data_offsets": [2, 6]}, "'b' starts at byte 2, not 4"),
        ({"data_offsets": [6, 10]}, "'b' starts at byte 6, not 4"),
        ({"shape": [3]}, "'b' has 4 bytes, which do not fit its shape"),
        ({"dtype": "F32"}, "'b' has 4 bytes, which do not fit its shape"),
        ({"shape": [2] + [1] * 8}, "'b' has more than 8 dimensions"),
    ],
)
def test_invalid_tensor_is_rejected_with_file_and_name(
    tmp_path: Path, changes: dict[str, object], problem: str
) -> None:
    tensors = {"a": WHOLE, "b": {**WHOLE, "data_offsets": [4, 8], **changes}}
    header = json.dumps(tensors).encode()
    path = tmp_path / SINGLE
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))

    with pytest.raises(Unreadable, match=rf"{SINGLE}: tensor {problem}: copy"):
        weight_shapes(tmp_path)


def test_headers_of_all_files_together_are_limited(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = int.from_bytes((folder / "shard.safetensors").read_bytes()[:8], "little")
    (folder / SINGLE).unlink()
    (folder / "link.safetensors").symlink_to("shard.safetensors")
    index = {"metadata": {}, "weight_map": {"a": "shard.safetensors", "b": "link.safetensors"}}
    (folder / INDEX).write_text(json.dumps(index))

    monkeypatch.setattr(weights, "MAX_SAFETENSORS_HEADERS_BYTES", 2 * size)
    assert NAME in weight_shapes(folder)
    monkeypatch.setattr(weights, "MAX_SAFETENSORS_HEADERS_BYTES", 2 * size - 1)
    with pytest.raises(Unreadable) as caught:
        weight_shapes(folder)
    limit = f"the headers of its .safetensors files have more than {2 * size - 1:,} bytes"
    assert str(caught.value) == f"{folder}: {limit}: copy or download the model again"
