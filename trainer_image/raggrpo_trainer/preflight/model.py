"""Check ModelReadable: the model folder's configuration, weights and tokenizer.

The facts come from config.json and the safetensors headers; must not read any tensors.
"""

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raggrpo_api.preflight import CheckId, Facts
from raggrpo_trainer.data.prompts import Tokenizer, load_tokenizer

from .finding import Finding, judged

SAMPLING_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Of generation_config.json. Requests give temperature and top_p themselves, and vLLM takes only
the end tokens from the file, so the others stay off in the engine as they are in the trainer."""
MAX_HEADER_BYTES = 100_000_000
"""The safetensors format's own limit."""


@dataclass(frozen=True, slots=True)
class Model:
    """What was found in the model folder."""

    finding: Finding
    facts: Facts
    tokenizer: Tokenizer | None
    """None if it cannot be loaded."""


class Unreadable(Exception):
    """A file is missing, damaged or of the wrong kind; the message says which."""


def check_model(path: Path) -> Model:
    """Check everything, so that all problems are reported at once."""
    if not path.is_dir():
        problem = f"{path} is no folder: model.path names a Hugging Face model's folder"
        return Model(judged(CheckId.MODEL_READABLE, [problem], ""), Facts(), None)
    problems = []
    facts = Facts()
    try:
        facts = _shape(path / "config.json")
    except Unreadable as error:
        problems.append(str(error))
    try:
        facts = facts.model_copy(update={"parameters": count_parameters(path)})
    except Unreadable as error:
        problems.append(str(error))
    tokenizer = None
    try:
        tokenizer = load_folder_tokenizer(path)
    except Exception as error:  # tokenizers raise whatever they like
        problems.append(f"the tokenizer in {path} cannot be loaded: {error}")
    ignored = ""
    try:
        ignored = _ignored_sampling(path / "generation_config.json")
    except Unreadable as error:
        problems.append(str(error))
    evidence = (
        f"{facts.parameters:,} parameters, {facts.layers} layers × {facts.hidden_size}, "
        f"context {facts.context_length}, tokenizer loads{ignored}"
    )
    return Model(judged(CheckId.MODEL_READABLE, problems, evidence), facts, tokenizer)


def count_parameters(path: Path) -> int:
    """Return the number of parameters in the safetensors files, counting each name once."""
    shapes: dict[str, list[int]] = {}
    for file in _weight_files(path):
        shapes |= dict(_tensors(file))
    return sum(math.prod(shape) for shape in shapes.values())


def _ignored_sampling(path: Path) -> str:
    """Name the model's own sampling defaults; rollout.temperature and topP count instead."""
    config = read_json(path) if path.exists() else {}
    given = [f"{name} {config[name]}" for name in SAMPLING_DEFAULTS if config.get(name) is not None]
    if not given:
        return ""
    return f"; {path.name}'s {', '.join(given)} not used: rollout.temperature and topP count"


def _shape(path: Path) -> Facts:
    config = read_json(path)
    config = config.get("text_config", config)

    def number(*keys: str, default: int | None = None) -> int:
        value = next((config[key] for key in keys if config.get(key) is not None), default)
        if not isinstance(value, int):
            raise Unreadable(f"{path} has no {keys[0]}: it is not a causal language model's")
        return value

    heads = number("num_attention_heads", "n_head")
    hidden = number("hidden_size", "n_embd")
    return Facts(
        layers=number("num_hidden_layers", "n_layer"),
        hidden_size=hidden,
        heads=heads,
        kv_heads=number("num_key_value_heads", default=heads),
        head_size=number("head_dim", default=hidden // heads),
        vocabulary=number("vocab_size"),
        context_length=number("max_position_embeddings", "n_positions"),
    )


def _weight_files(path: Path) -> list[Path]:
    index = path / "model.safetensors.index.json"
    if index.exists():
        names = read_json(index).get("weight_map", {}).values()
        return [path / name for name in sorted(set(names))]
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise Unreadable(f"{path} has no *.safetensors: save the model with save_pretrained()")
    return files


def _tensors(path: Path) -> Iterator[tuple[str, list[int]]]:
    """Yield (name, shape) from the header; its last offset also gives the expected file size."""
    try:
        with path.open("rb") as file:
            [size] = struct.unpack("<Q", file.read(8))
            raw = file.read(min(size, MAX_HEADER_BYTES))
        header = json.loads(raw)
        header.pop("__metadata__", None)
        tensors = {name: tensor["shape"] for name, tensor in header.items()}
        end = max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
    except OSError as error:
        raise Unreadable(f"{path} cannot be read: {error.strerror}") from error
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unreadable(f"{path} is not a safetensors file: copy it again") from error
    found, wanted = path.stat().st_size, 8 + size + end
    if found != wanted:
        raise Unreadable(f"{path} has {found} of {wanted} bytes: copy it again")
    yield from tensors.items()


def load_folder_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer of a model's folder. Raises whatever tokenizers raise."""
    if not (path / "tokenizer.json").exists():
        return load_tokenizer(str(path))
    # Unlike AutoTokenizer, this avoids importing torch, which would take half of preflight's time.
    from transformers import PreTrainedTokenizerFast

    tokenizer: Tokenizer = PreTrainedTokenizerFast.from_pretrained(path)
    return tokenizer


def read_json(path: Path) -> dict[str, Any]:
    """Return a file's JSON object. Raises Unreadable."""
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise Unreadable(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise Unreadable(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise Unreadable(f"{path} is not a JSON object")
    return value
