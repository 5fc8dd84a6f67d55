"""Check a model folder that others wrote, before a library reads it.

Libraries allocate what config.json specifies, follow links, and wait for pipes.
"""

import os
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from .foreign_files import UnsuitableFile, open_regular, read_json, require_below
from .limits import (
    MAX_FOLDER_ENTRIES,
    MAX_INDEX_BYTES,
    MAX_MODEL_JSON_BYTES,
    MAX_TOKENIZER_BYTES,
)

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
INDEX = "model.safetensors.index.json"
TEXT_SUFFIXES = frozenset({".json", ".jinja", ".txt", ".model", ".tiktoken"})
"""Suffixes of files that libraries read into memory, unlike weights."""
_SUBFOLDERS = ("", "additional_chat_templates", "1_Pooling")
"""Subfolders with files that libraries read."""
SMALL_FILES = frozenset(
    {CONFIG, GENERATION_CONFIG, "tokenizer_config.json", "special_tokens_map.json"}
)
MAX_LAYERS = 10_000
MAX_SIZE = 1 << 31
"""Maximum width, vocabulary and context length."""
MAX_NUMBER = 1 << 53
"""Maximum of any other integer; larger ones are not exact as floating-point numbers."""
MAX_DEPTH = 32
_SIZES = (
    "num_hidden_layers",
    "n_layer",
    "num_layers",
    "hidden_size",
    "n_embd",
    "d_model",
    "intermediate_size",
    "n_inner",
    "num_attention_heads",
    "n_head",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
    "n_positions",
)
"""Fields whose value is null, a nonnegative integer, or a list of them."""
_TOKENS = {name: -1 for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
"""Fields with token ids and their minimum; some models have -1 for no token."""
_LAYERS = frozenset({"num_hidden_layers", "n_layer", "num_layers"})


class UnsafeModel(Exception):
    """The folder cannot be read safely. The message has file, problem and remedy."""


def require_safe_files(folder: Path) -> None:
    """Raise UnsafeModel unless all files are regular, below the folder and of limited size."""
    for path in _files(folder):
        try:
            require_below(path, folder)
            with open_regular(path) as file:
                _require_size(path, os.fstat(file.fileno()).st_size)
        except OSError as error:
            raise UnsafeModel(f"{path} cannot be read: {error.strerror}") from error


def require_safe_model(folder: Path) -> None:
    """Raise UnsafeModel if a library must not load a model or a tokenizer from the folder.

    A folder without config.json is accepted; its reader reports that.
    """
    require_safe_files(folder)
    for name in (CONFIG, GENERATION_CONFIG):
        if (folder / name).exists():
            read_model_json(folder / name)


def read_model_json(path: Path) -> dict[str, Any]:
    """Return a JSON object of a model folder if its numbers are within limits.

    Raises UnsafeModel, also if the file does not exist.
    """
    try:
        value = read_json(path, _limit(path.name))
    except OSError as error:
        raise UnsafeModel(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UnsafeModel(f"{path} is not JSON ({error}): copy the file again") from error
    if not isinstance(value, dict):
        raise UnsafeModel(f"{path} is not a JSON object: copy the file again")
    problem = next(_problems(value), "") if path.name in (CONFIG, GENERATION_CONFIG) else ""
    if problem:
        raise UnsafeModel(f"{path}: {problem}: correct the file, or copy it again")
    return value


def _files(folder: Path) -> list[Path]:
    """Return the entries that libraries may read, except real folders."""
    entries: list[Path] = []
    for place in (folder / name for name in _SUBFOLDERS):
        if place.is_dir():
            listed = islice(os.scandir(place), MAX_FOLDER_ENTRIES + 1)
            entries += [Path(each) for each in listed if not each.is_dir(follow_symlinks=False)]
    if len(entries) > MAX_FOLDER_ENTRIES:
        raise UnsafeModel(f"{folder} has more than {MAX_FOLDER_ENTRIES:,} files")
    return [path for path in sorted(entries) if not path.name.startswith(".")]


def _require_size(path: Path, size: int) -> None:
    limit = _limit(path.name)
    if size > limit and path.suffix in TEXT_SUFFIXES:
        raise UnsuitableFile(f"it has more than {limit:,} bytes")


def _limit(name: str) -> int:
    if name == INDEX:
        return MAX_INDEX_BYTES
    return MAX_MODEL_JSON_BYTES if name in SMALL_FILES else MAX_TOKENIZER_BYTES


def _problems(value: object, path: str = "", depth: int = 0) -> Iterator[str]:
    """Yield the problems of a configuration and of those that it contains."""
    if depth > MAX_DEPTH:
        yield f"{path[:40]}… is nested too deeply"
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from _field_problems(name, each, f"{path}{name}")
            yield from _problems(each, f"{path}{name}.", depth + 1)
    elif isinstance(value, list):
        for each in value:
            yield from _problems(each, path, depth + 1)
    elif isinstance(value, int) and abs(value) > MAX_NUMBER:
        yield f"{path.rstrip('.')} is more than {MAX_NUMBER:,}"


def _field_problems(name: str, value: object, path: str) -> Iterator[str]:
    if name not in _SIZES and name not in _TOKENS:
        return
    most = MAX_LAYERS if name in _LAYERS else MAX_SIZE
    for each in value if isinstance(value, list) else [value]:
        if each is None:
            continue
        if type(each) is not int or each < _TOKENS.get(name, 0):
            yield f"{path} is {each!r:.40} instead of an integer"
        elif each > most:
            yield f"{path} is {each!r:.40}, more than {most:,}"
