"""Which files of a model folder are loaded, and which settings of tokenizers are accepted."""

import json
import math
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from raggrpo_api.model_folder import (
    MAX_LISTED_TOKENS,
    TEMPLATES,
    UnsafeModel,
    is_weight_file,
    loaded_files,
    read_model_json,
    require_own_weights,
    require_safe_files,
)

INDEX = json.dumps({"metadata": {}, "weight_map": {"a": "model-1-of-1.safetensors"}})


def make_folder(folder: Path, *names: str, **config: Any) -> Path:
    folder.mkdir()
    for name in names:
        (folder / name).write_text(INDEX if name.endswith(".index.json") else "")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


SAFE, SHARD, PYTORCH = "model.safetensors", "model-1-of-1.safetensors", "pytorch_model.bin"
SAFE_INDEX, PYTORCH_INDEX = "model.safetensors.index.json", "pytorch_model.bin.index.json"


@pytest.mark.parametrize(
    ("names", "loaded"),
    [
        ([SAFE, SHARD, SAFE_INDEX, PYTORCH], SAFE),
        ([SHARD, SAFE_INDEX, PYTORCH, "other.safetensors"], SHARD),
        ([PYTORCH, "pytorch_model-1-of-1.bin"], PYTORCH),
        ([PYTORCH, SHARD, PYTORCH_INDEX], PYTORCH),
        ([SHARD, PYTORCH_INDEX], SHARD),
    ],
)
def test_loaded_weights_are_those_that_transformers_prefers(
    tmp_path: Path, names: list[str], loaded: str
) -> None:
    folder = make_folder(tmp_path / "model", *names)
    assert [each.name for each in loaded_files(folder) if is_weight_file(each)] == [loaded]


@pytest.mark.parametrize("name", ["own.safetensors", "own.safetensors.index.json"])
def test_loaded_weights_are_those_that_the_config_names(tmp_path: Path, name: str) -> None:
    folder = make_folder(tmp_path / "model", SAFE, SHARD, name, transformers_weights=name)
    expected = SHARD if name.endswith(".json") else name
    assert [each.name for each in loaded_files(folder) if is_weight_file(each)] == [expected]


@pytest.mark.parametrize(
    ("index", "problem"),
    [
        ({"weight_map": {}}, "has no valid metadata"),
        ({"metadata": [], "weight_map": {}}, "has no valid metadata"),
        ({"metadata": {}}, "has no valid weight_map"),
        ({"metadata": {}, "weight_map": {"a": []}}, "is not the name of a file"),
    ],
)
def test_index_that_transformers_cannot_read_is_rejected(
    tmp_path: Path, index: object, problem: str
) -> None:
    folder = make_folder(tmp_path / "model", SHARD, SAFE_INDEX)
    require_own_weights(folder)
    (folder / SAFE_INDEX).write_text(json.dumps(index))
    with pytest.raises(UnsafeModel, match=f"{SAFE_INDEX} {problem}|: .*{problem}"):
        require_own_weights(folder)


@pytest.mark.parametrize("name", ["sub/x.safetensors", "/x.safetensors", 1, ["a"]])
def test_weights_elsewhere_are_rejected(tmp_path: Path, name: object) -> None:
    folder = make_folder(tmp_path / "model", SAFE, transformers_weights=name)
    with pytest.raises(UnsafeModel, match=r"transformers_weights is .* instead of a file name"):
        read_model_json(folder / "config.json")


OTHER_CODE: dict[str, dict[str, object]] = {
    "kernels of the Hub": {"attn_implementation": "someone/kernels"},
    "private field": {"_attn_implementation": "someone/kernels@v1:f"},
    "experts": {"experts_implementation": "someone/kernels"},
    "part of a model": {"text_config": {"attn_implementation": {"a": "someone/kernels"}}},
    "list": {"attn_implementation": ["sdpa"]},
    "compiled code": {"attn_implementation": "flex_attention"},
    "backbone": {"backbone": "someone/model"},
    "backbone elsewhere": {"vision_config": {"backbone": "/elsewhere"}},
    "pretrained backbone": {"use_pretrained_backbone": 1},
}


@pytest.mark.parametrize("name", OTHER_CODE)
def test_config_that_names_code_or_models_elsewhere_is_rejected(tmp_path: Path, name: str) -> None:
    folder = make_folder(tmp_path / "model", SAFE, **OTHER_CODE[name])
    with pytest.raises(
        UnsafeModel, match=r"config\.json: (\w+\.)?_?(attn|experts|backbone|use_pre)"
    ):
        read_model_json(folder / "config.json")


@pytest.mark.parametrize("value", [None, "sdpa", "eager", "flash_attention_2"])
def test_attention_of_transformers_is_accepted(tmp_path: Path, value: object) -> None:
    folder = make_folder(tmp_path / "model", SAFE, attn_implementation=value, backbone=None)
    assert read_model_json(folder / "config.json")["attn_implementation"] == value


@pytest.mark.parametrize(
    ("name", "most", "more", "problem"),
    [
        ("num_hidden_groups", 1_000, 1_001, "is 1001, more than 1,000"),
        ("inner_group_num", 1_000, 1_001, "is 1001, more than 1,000"),
        ("num_feedforward_networks", 1_000, 1_001, "is 1001, more than 1,000"),
        ("block_sizes", [4, 1_000], [4, 1_001], "is 1001, more than 1,000"),
        ("block_sizes", [1] * 1_000, [1] * 1_001, "has 1,001 entries, more than 1,000"),
        ("languages", ["en"] * 1_000, ["en"] * 1_001, "has 1,001 entries, more than 1,000"),
    ],
)
def test_fields_that_repeat_layers_are_limited(
    tmp_path: Path, name: str, most: object, more: object, problem: str
) -> None:
    config = make_folder(tmp_path / "model", SAFE, **{name: most}) / "config.json"
    assert read_model_json(config) == {name: most}
    config.write_text(json.dumps({name: more}))
    with pytest.raises(UnsafeModel, match=f"config.json: {name} {problem}: correct the file"):
        read_model_json(config)


@pytest.mark.parametrize("name", ["num_experts", "n_group", "num_key_value_groups", "groups"])
def test_numbers_that_repeat_no_layers_are_accepted(tmp_path: Path, name: str) -> None:
    folder = make_folder(tmp_path / "model", SAFE, **{name: 2_048})
    assert read_model_json(folder / "config.json") == {name: 2_048}


def test_long_name_above_many_fields_is_rejected_at_once(tmp_path: Path) -> None:
    config = make_folder(tmp_path / "model", SAFE, **{"a" * 256: {"b": 1}}) / "config.json"
    read_model_json(config)
    fields = {f"{each}": 1 for each in range(20_000)}
    config.write_text(json.dumps({"x": {"a" * 1_000_000: fields}}))

    start = time.process_time()
    with pytest.raises(UnsafeModel, match=r"x\.a{40}… is a name of more than 256 characters: corr"):
        read_model_json(config)
    assert time.process_time() - start < 1


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {
    "type": "yarn",
    "factor": 40,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 0,
    "attention_factor": None,
}
LONGROPE = {"rope_type": "longrope", "long_factor": [1.0, 64.5], "short_factor": [1, 1.1]}


@pytest.mark.parametrize("field", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("rope", [LLAMA3, YARN, LONGROPE, {"full_attention": LLAMA3}, None])
def test_settings_of_rotary_embeddings_are_accepted(
    tmp_path: Path, field: str, rope: object
) -> None:
    folder = make_folder(tmp_path / "model", SAFE, **{field: rope})
    assert read_model_json(folder / "config.json") == {field: rope}


@pytest.mark.parametrize(
    ("rope", "problem"),
    [
        (LLAMA3 | {"factor": 0}, "rope_parameters.factor is 0 instead of a number above 0"),
        (LLAMA3 | {"rope_theta": 0}, "rope_parameters.rope_theta is 0 instead of a number above"),
        (
            LLAMA3 | {"partial_rotary_factor": 0},
            "rope_parameters.partial_rotary_factor is 0 instead of a number above 0",
        ),
        (YARN | {"factor": -4.0}, "rope_parameters.factor is -4.0 instead of a number above 0"),
        (YARN | {"beta_fast": 0}, "rope_parameters.beta_fast is 0 instead of a number above 0"),
        (YARN | {"mscale": math.nan}, "rope_parameters.mscale is nan instead of a number of at"),
        (
            YARN | {"original_max_position_embeddings": 0},
            "rope_parameters.original_max_position_embeddings is 0 instead of a number above 0",
        ),
        (LONGROPE | {"long_factor": [1, 0]}, "rope_parameters.long_factor is 0 instead of a"),
        (
            {"full_attention": LLAMA3 | {"factor": "8"}},
            "rope_parameters.full_attention.factor is '8' instead of a number above 0",
        ),
    ],
)
def test_rotary_embeddings_that_are_no_numbers_are_rejected(
    tmp_path: Path, rope: object, problem: str
) -> None:
    config = make_folder(tmp_path / "model", SAFE, rope_parameters=rope) / "config.json"
    with pytest.raises(UnsafeModel, match=re.escape(f"config.json: {problem}")):
        read_model_json(config)


ROPE_FIELDS = [
    *["rope_theta", "global_rope_theta", "local_rope_theta", "compress_rope_theta"],
    *["rotary_emb_base", "rope_local_base_freq", "partial_rotary_factor"],
]


@pytest.mark.parametrize("name", ROPE_FIELDS)
@pytest.mark.parametrize("value", [None, 4.0, 10_000, 0.334])
def test_rotary_fields_may_be_null_or_positive(tmp_path: Path, name: str, value: object) -> None:
    folder = make_folder(tmp_path / "model", SAFE, **{name: value})
    assert read_model_json(folder / "config.json") == {name: value}


@pytest.mark.parametrize("name", ROPE_FIELDS)
@pytest.mark.parametrize("value", [0, 0.0, -1, math.nan, math.inf, "1", True, [1, 0]])
def test_rotary_fields_that_are_not_positive_are_rejected(
    tmp_path: Path, name: str, value: object
) -> None:
    folder = make_folder(tmp_path / "model", SAFE, **{name: value})
    with pytest.raises(UnsafeModel, match=rf"config\.json: {name} is .* of a number above 0"):
        read_model_json(folder / "config.json")


def test_layers_without_rotary_embeddings_are_accepted(tmp_path: Path) -> None:
    bases = {"layer_rope_theta": [10_000.0, 0]}
    folder = make_folder(tmp_path / "model", SAFE, **bases)
    assert read_model_json(folder / "config.json") == bases
    folder = make_folder(tmp_path / "other", SAFE, layer_rope_theta=[10_000.0, -1])
    with pytest.raises(UnsafeModel, match="layer_rope_theta is -1 instead of a number of at least"):
        read_model_json(folder / "config.json")


def linked(folder: Path, name: str, size: int, count: int) -> None:
    """Write a file of zeros and links to it, `count` entries in total."""
    folder.mkdir(exist_ok=True)
    first = folder / f"0{name}"
    first.touch()
    os.truncate(first, size)
    for number in range(1, count):
        (folder / f"{number}{name}").symlink_to(first.name)


@pytest.mark.parametrize(
    ("place", "name", "size", "most", "problem"),
    [
        ("", ".txt", 32 << 20, 7, "text files (.jinja, .json, .model, .tiktoken, .txt) of more"),
        (TEMPLATES, ".jinja", 100, 100, "more than 100 chat templates (.jinja): remove those"),
        (TEMPLATES, ".jinja", 1 << 19, 8, "chat templates of more than 4,194,304 bytes in total"),
    ],
)
def test_links_count_as_often_as_they_occur(
    tmp_path: Path, place: str, name: str, size: int, most: int, problem: str
) -> None:
    folder = make_folder(tmp_path / "model", SAFE)
    linked(folder / place, name, size, most)
    require_safe_files(folder)
    (folder / place / f"x{name}").symlink_to(f"0{name}")
    with pytest.raises(UnsafeModel, match=re.escape(f"{folder} has {problem}")):
        require_safe_files(folder)


@pytest.mark.parametrize("name", [".jinja", ".a.jinja"])
def test_hidden_templates_have_limits(tmp_path: Path, name: str) -> None:
    folder = make_folder(tmp_path / "model", SAFE)
    linked(folder / TEMPLATES, name, 1 << 19, 1)
    (folder / TEMPLATES / f"0{name}").rename(folder / TEMPLATES / name)
    require_safe_files(folder)
    os.truncate(folder / TEMPLATES / name, 50 << 30)
    with pytest.raises(UnsafeModel, match="it has more than 524,288 bytes"):
        require_safe_files(folder)


def test_large_files_of_known_models_are_accepted(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", SAFE)
    sizes = {"tokenizer.json": 35, "vocab.json": 10, "merges.txt": 10, SAFE_INDEX: 20, SAFE: 9_000}
    for name, megabytes in sizes.items():
        (folder / name).touch()
        os.truncate(folder / name, megabytes << 20)
    require_safe_files(folder)


def test_adapter_has_no_own_weights(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", SAFE, "adapter_config.json")
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "/elsewhere"}')
    (folder / "model.safetensors").unlink(missing_ok=True)
    with pytest.raises(UnsafeModel, match="is an adapter: merge it"):
        require_own_weights(folder)
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(UnsafeModel, match=r"or remove adapter_config\.json to use the model with"):
        require_own_weights(folder)


def tokens(number: int) -> dict[str, str]:
    return {f"token_{each}": f"<{each}>" for each in range(number)}


HALF = MAX_LISTED_TOKENS // 2 + 1
TOO_MANY: dict[str, dict[str, object]] = {
    "list": {"additional_special_tokens": list(tokens(MAX_LISTED_TOKENS + 1))},
    "mapping": {"extra_special_tokens": tokens(MAX_LISTED_TOKENS + 1)},
    "two lists": {"additional_special_tokens": list(tokens(HALF)), "x": list(tokens(HALF))},
    "list and mapping": {"x": list(tokens(HALF)), "extra_special_tokens": tokens(HALF)},
    "created by T5": {"extra_ids": 10**9},
    "created by Pegasus": {"offset": MAX_LISTED_TOKENS + 1},
    "created and removed": {"extra_ids": -(10**9), "offset": 10**9},
    "created and listed": {"extra_ids": HALF, "additional_special_tokens": list(tokens(HALF))},
}


@pytest.mark.parametrize("name", TOO_MANY)
def test_tokenizer_with_too_many_special_tokens_is_rejected(tmp_path: Path, name: str) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(TOO_MANY[name]))
    with pytest.raises(UnsafeModel, match=f"special tokens, more than {MAX_LISTED_TOKENS:,}"):
        read_model_json(tmp_path / "tokenizer_config.json")


def test_tokenizer_with_many_added_tokens_is_accepted(tmp_path: Path) -> None:
    values = {"added_tokens_decoder": tokens(100_000), "extra_ids": 100, "model_max_length": 10**30}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(values))
    assert read_model_json(tmp_path / "tokenizer_config.json") == values


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"gguf_file": "../../secret"}, "gguf_file is '../../secret', but a tokenizer is loaded"),
        ({"merges_file": "/etc/hosts"}, "merges_file is '/etc/hosts', but a tokenizer is loaded"),
        ({"init_inputs": ["/etc/hosts"]}, "init_inputs is ['/etc/hosts'], but a tokenizer is"),
        ({"vocab": "/etc/hosts"}, "vocab is '/etc/hosts', but a tokenizer is loaded only from"),
        ({"fast_tokenizer_files": ["../a/tokenizer.4.0.json"]}, "only tokenizer.json is supported"),
        (
            {"fast_tokenizer_files": ["tokenizer.json", "tokenizer.4.0.json"]},
            "only tokenizer.json is supported",
        ),
    ],
)
def test_tokenizer_settings_that_name_other_files_are_rejected(
    tmp_path: Path, settings: dict[str, Any], expected: str
) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(UnsafeModel) as caught:
        read_model_json(tmp_path / "tokenizer_config.json")
    assert expected in str(caught.value)


def test_usual_settings_of_files_are_accepted(tmp_path: Path) -> None:
    values = {
        "special_tokens_map_file": "/home/author/special_tokens_map.json",
        "tokenizer_file": None,
        "vocab_file": "/home/author/vocab.json",
        "merges_file": None,
        "init_inputs": [],
        "fast_tokenizer_files": ["tokenizer.json"],
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(values))
    assert read_model_json(tmp_path / "tokenizer_config.json") == values
