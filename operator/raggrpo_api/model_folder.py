"""Check a model folder that others wrote, before a library reads it.

Libraries allocate what config.json specifies, follow links, and wait for pipes.
"""

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from .fields.text import printable
from .foreign_files import (
    UnsuitableFile,
    open_regular,
    read_json,
    require_below,
    require_few_values,
)
from .limits import (
    MAX_FOLDER_ENTRIES,
    MAX_FOLDER_TEXT_BYTES,
    MAX_INDEX_BYTES,
    MAX_MODEL_JSON_BYTES,
    MAX_TEMPLATES,
    MAX_TEMPLATES_BYTES,
    MAX_TEXT_FILE_BYTES,
    MAX_TEXT_LINES,
    MAX_TOKENIZER_BYTES,
)

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
INDEX = "model.safetensors.index.json"
PYTORCH_INDEX = "pytorch_model.bin.index.json"
TEXT_SUFFIXES = frozenset({".json", ".jinja", ".txt", ".model", ".tiktoken"})
"""Suffixes of files that libraries read into memory, unlike weights."""
_TEMPLATE_SUFFIX = ".jinja"
TEMPLATES = "additional_chat_templates"
"""Subfolder with the chat templates besides the default one."""
_SUBFOLDERS = ("", TEMPLATES, "1_Pooling")
"""Subfolders with files that libraries read."""
SMALL_FILES = frozenset({CONFIG, GENERATION_CONFIG, TOKENIZER_CONFIG, "special_tokens_map.json"})
MAX_LAYERS = 1_000
MAX_LISTED_TOKENS = 20_000
"""Special tokens in a tokenizer's settings; transformers takes quadratic time for them."""
MAX_MAPPED_TOKENS = 200_000
"""Descriptions of tokens in a tokenizer's settings."""
MAX_SIZE = 1 << 31
"""Maximum width, vocabulary and context length."""
MAX_NUMBER = 1 << 53
"""Maximum of any other integer; larger ones are not exact as floating-point numbers."""
MAX_DEPTH = 32
MAX_FIELD_NAME = 256
"""Characters of a field's name; the name of a field is part of the paths of all fields below it."""
MAX_NAME_BYTES = 255
"""Maximum length of a file name on Linux."""
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
_NUMBERS = frozenset(
    {"rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon"}
    | {"layer_rope_theta", "initializer_range", "attention_dropout", "attn_pdrop"}
)
"""Fields whose value is null, a nonnegative number, or contains several of them."""
_POSITIVE = re.compile(
    r"(?:(?!layer_)\w+_)?rope_theta|rotary_emb_base|rope_local_base_freq|partial_rotary_factor"
)
"""Fields whose value is null, a positive number, or contains several of them.

The base 0 of a layer means that it has no rotary embeddings. Some models have a factor above 1.
"""
_ROPES = ("rope_parameters", "rope_scaling")
"""Fields with the settings of rotary embeddings, or with those of each type of layer."""
_ROPE_POSITIVE = frozenset(
    {"factor", "original_max_position_embeddings", "beta_fast", "beta_slow"}
    | {"low_freq_factor", "high_freq_factor", "short_factor", "long_factor", "attention_factor"}
)
"""Settings of rotary embeddings that are null, a positive number, or a list of them."""
_ROPE_NONNEGATIVE = frozenset({"mscale", "mscale_all_dim", "short_mscale", "long_mscale"})
"""Settings of rotary embeddings that are null or a nonnegative number."""
MAX_LABELS = 100_000
"""Classes of a classifier; transformers creates a name for each."""
_LIMITS = {"num_labels": MAX_LABELS}
"""Fields with a lower limit."""
_LABELS = ("id2label", "label2id")
"""Fields with an entry for each class."""
_TOKENS = {name: -1 for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
"""Fields with token ids and their minimum; some models have -1 for no token."""
_LAYERS = re.compile(
    r"(?:^|_)(?:n_)?(?:layers?|depths?|blocks|block_sizes|hidden_groups|group_num"
    r"|feedforward_networks|languages)$"
)
"""Ends of the names of fields with a number of layers, such as `encoder_layers` and `n_layer`.

A list has the numbers of several groups of layers, or one layer for each entry.
"""
_WEIGHTS = (
    "model.safetensors",
    INDEX,
    "pytorch_model.bin",
    PYTORCH_INDEX,
)
"""Files that specify the weights; transformers loads the first one that exists."""
_WEIGHTS_FIELD = "transformers_weights"
"""Field of config.json with the name of such a file, which replaces the others."""
_OTHER_MODELS = ("backbone", "use_pretrained_backbone")
"""Fields of config.json that make transformers load another model, also from the Hub."""
_KERNELS = tuple(
    f"{prefix}{part}_implementation" for prefix in ("", "_") for part in ("attn", "experts")
)
"""Fields of config.json with the name of code, also from the Hub or compiled when it is used."""
_OWN_KERNELS = frozenset(
    [None, "eager", "sdpa", "flash_attention_2", "flash_attention_3", "batched_mm", "grouped_mm"]
)
ADAPTER = "adapter_config.json"
"""File with which transformers loads another model, from any folder or the Hub, and an adapter."""
_ADDED_TOKENS = "added_tokens_decoder"
"""Field of a tokenizer's settings that describes tokens, but adds none."""
_RESOLVED_FILES = ("tokenizer_file", "vocab_file", "special_tokens_map_file")
"""Settings of a tokenizer that transformers ignores or replaces by the folder's files."""
_ARGUMENTS = ("init_inputs", "tokenizer_object", "vocab", "merges")
"""Settings of a tokenizer that transformers passes on, also as names of files."""
_VERSIONS = "fast_tokenizer_files"
"""Setting of a tokenizer with the names of files like tokenizer.json."""
_CREATED_TOKENS = ("extra_ids", "offset")
"""Fields with the number of special tokens that classes such as T5Tokenizer create."""


class UnsafeModel(Exception):
    """The folder cannot be read safely. The message has file, problem and remedy."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


def require_safe_files(folder: Path) -> None:
    """Raise UnsafeModel unless all files are regular, below the folder and of limited size.

    A file counts as often as links lead to it, since libraries read each of them.
    """
    texts = templates = templates_size = 0
    for path in _files(folder):
        try:
            require_below(path, folder)
            with open_regular(path) as file:
                if is_weight_file(path):
                    continue
                size = os.fstat(file.fileno()).st_size
                _require_size(path, size)
                texts += size
                if path.name.endswith(_TEMPLATE_SUFFIX):
                    templates += 1
                    templates_size += size
                _require_totals(folder, texts, templates, templates_size)
                _require_few_values(path, file.read(size))
        except OSError as error:
            raise UnsafeModel(f"{path} cannot be read: {error.strerror}") from error


def loaded_files(folder: Path) -> list[Path]:
    """Return the files of a model folder that libraries load: settings, vocabularies and weights.

    Raises UnsafeModel.
    """
    files = _files(folder)
    return [each for each in files if not is_weight_file(each)] + _weights(folder, files)


def is_weight_file(path: Path) -> bool:
    """Return whether a file of `loaded_files` has weights."""
    return not path.name.endswith(tuple(TEXT_SUFFIXES))  # also if the suffix is the whole name


def require_own_weights(folder: Path) -> None:
    """Raise UnsafeModel if transformers would load other weights, or cannot read their index."""
    require_safe_model(folder)
    if problem := adapter_problem(folder):
        raise UnsafeModel(problem)
    entry = weights_entry(folder)
    if entry is not None and entry.suffix == ".json":
        shard_names(entry)


def adapter_problem(folder: Path) -> str:
    """Return the problem of an adapter or of a model with an adapter, with its remedy, or "".

    With peft, transformers adds an adapter in the folder of a model to it; without, it ignores the
    adapter. Raises UnsafeModel if config.json cannot be read.
    """
    if not os.path.lexists(folder / ADAPTER):
        return ""
    if weights_entry(folder) is None:
        return f"{folder} is an adapter: merge it into its base model and use the merged model"
    return (
        f"{folder} has a model and {ADAPTER}, but adapters are not applied: merge the adapter into "
        f"the model, or remove {ADAPTER} to use the model without it"
    )


def weights_entry(folder: Path) -> Path | None:
    """Return the file of weights that transformers loads, or the index that names such files.

    None if there is no such file. Raises UnsafeModel if config.json cannot be read.
    """
    config = read_model_json(folder / CONFIG) if (folder / CONFIG).exists() else {}
    specified = config.get(_WEIGHTS_FIELD)
    names = _WEIGHTS if specified is None else (specified,)
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _weights(folder: Path, files: Sequence[Path]) -> list[Path]:
    """Return the files with weights that transformers loads."""
    own = {path.name: path for path in files if path.parent == folder}
    entry = weights_entry(folder)
    if entry is None or entry.suffix != ".json":
        return [entry] if entry else []
    shards = set(shard_names(entry))
    return [path for name, path in own.items() if name in shards]


def shard_names(index: Path) -> list[str]:
    """Return the names of the files of weights that an index names.

    Raises UnsafeModel unless transformers can read the index, which needs `metadata`, too.
    """
    value = read_model_json(index)
    for field in ("metadata", "weight_map"):
        if not isinstance(value.get(field), dict):
            raise UnsafeModel(
                f"{index} has no valid {field}, an object that libraries require: copy the file "
                "again, or save the model with save_pretrained()"
            )
    names = value["weight_map"].values()
    if others := [name for name in names if not _is_file_name(name)]:
        raise UnsafeModel(
            f"{index}: {others[0]!r:.80} is not the name of a file in its folder: copy the file "
            "again"
        )
    return sorted(set(names))


def _is_file_name(name: object) -> bool:
    if not isinstance(name, str) or name.startswith(".") or "\0" in name:
        return False
    return Path(name).name == name and len(name.encode(errors="replace")) <= MAX_NAME_BYTES


def require_safe_model(folder: Path) -> None:
    """Raise UnsafeModel if a library must not load a model or a tokenizer from the folder.

    A folder without config.json is accepted; its reader reports that.
    """
    require_safe_files(folder)
    for name in sorted(SMALL_FILES):
        if (folder / name).exists():
            read_model_json(folder / name)


def read_model_json(path: Path) -> dict[str, Any]:
    """Return a JSON object of a model folder if its numbers are within limits.

    Raises UnsafeModel, also if the file does not exist.
    """
    try:
        value = read_json(path, max_bytes(path.name))
    except OSError as error:
        raise UnsafeModel(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UnsafeModel(f"{path} is not JSON ({error}): copy the file again") from error
    if not isinstance(value, dict):
        raise UnsafeModel(f"{path} is not a JSON object: copy the file again")
    problem = _problem(path.name, value)
    if problem:
        raise UnsafeModel(f"{path}: {problem}: correct the file, or copy it again")
    return value


def _files(folder: Path) -> list[Path]:
    """Return the entries that libraries may read, except real folders.

    Hidden files are ignored, but transformers loads hidden templates.
    """
    entries: list[Path] = []
    for place in (folder / name for name in _SUBFOLDERS):
        if place.is_dir():
            listed = islice(os.scandir(place), MAX_FOLDER_ENTRIES + 1)
            entries += [Path(each) for each in listed if not each.is_dir(follow_symlinks=False)]
    if len(entries) > MAX_FOLDER_ENTRIES:
        raise UnsafeModel(f"{folder} has more than {MAX_FOLDER_ENTRIES:,} files")
    return [
        path
        for path in sorted(entries)
        if not path.name.startswith(".") or path.name.endswith(_TEMPLATE_SUFFIX)
    ]


def _require_few_values(path: Path, content: bytes) -> None:
    """Raise UnsuitableFile if a text expands too much when a library parses it."""
    if path.suffix != ".json":
        if content.count(b"\n") > MAX_TEXT_LINES:
            raise UnsuitableFile(f"it has more than {MAX_TEXT_LINES:,} lines")
        return
    try:
        require_few_values(content)
    except ValueError as error:
        raise UnsuitableFile(str(error)) from error


def _require_size(path: Path, size: int) -> None:
    if size > (limit := max_bytes(path.name)):
        raise UnsuitableFile(f"it has more than {limit:,} bytes")


def _require_totals(folder: Path, texts: int, templates: int, templates_size: int) -> None:
    """Raise UnsafeModel if the text files or chat templates of a folder are too many or large."""
    problem = ""
    if texts > MAX_FOLDER_TEXT_BYTES:
        suffixes = ", ".join(sorted(TEXT_SUFFIXES))
        problem = f"text files ({suffixes}) of more than {MAX_FOLDER_TEXT_BYTES:,} bytes in total"
    elif templates > MAX_TEMPLATES:
        problem = f"more than {MAX_TEMPLATES} chat templates ({_TEMPLATE_SUFFIX})"
    elif templates_size > MAX_TEMPLATES_BYTES:
        problem = f"chat templates of more than {MAX_TEMPLATES_BYTES:,} bytes in total"
    if problem:
        raise UnsafeModel(f"{folder} has {problem}: remove those that the model does not need")


def max_bytes(name: str) -> int:
    """Return the maximum size of a file that is read into memory."""
    if name == INDEX:
        return MAX_INDEX_BYTES
    if name.endswith(_TEMPLATE_SUFFIX):
        return MAX_TEXT_FILE_BYTES
    return MAX_MODEL_JSON_BYTES if name in SMALL_FILES else MAX_TOKENIZER_BYTES


def _problem(name: str, value: Mapping[str, Any]) -> str:
    """Return the first problem of a file of a model folder, or ""."""
    if name in (CONFIG, GENERATION_CONFIG):
        return next(_problems(value), "") or _weights_problem(value.get(_WEIGHTS_FIELD))
    if name not in SMALL_FILES:
        return ""
    if name == TOKENIZER_CONFIG and (problem := next(_foreign_files(value), "")):
        return problem
    described = _num_tokens(_ADDED_TOKENS, value.get(_ADDED_TOKENS))
    if described > MAX_MAPPED_TOKENS:
        return f"{_ADDED_TOKENS} has {described:,} entries, more than {MAX_MAPPED_TOKENS:,}"
    special = sum(_num_tokens(key, each) for key, each in value.items() if key != _ADDED_TOKENS)
    if special > MAX_LISTED_TOKENS:
        return f"it has {special:,} special tokens, more than {MAX_LISTED_TOKENS:,}"
    return ""


def _foreign_files(value: Mapping[str, Any]) -> Iterator[str]:
    """Yield the settings of a tokenizer with which transformers reads files that they name."""
    for name, each in value.items():
        is_file = name.endswith("_file") and name not in _RESOLVED_FILES
        if each and (is_file or name in _ARGUMENTS):
            yield f"{name} is {each!r:.40}, but a tokenizer is loaded only from its own files"
        elif name == _VERSIONS and each not in ([], ["tokenizer.json"]):
            yield f"{name} is {each!r:.80}, but only tokenizer.json is supported"


def _num_tokens(name: str, value: object) -> int:
    if isinstance(value, list | dict):
        return len(value)
    return max(0, value) if name in _CREATED_TOKENS and isinstance(value, int) else 0


def _weights_problem(name: object) -> str:
    if name is None or (isinstance(name, str) and "/" not in name and name[:1] != "."):
        return ""
    return f"{_WEIGHTS_FIELD} is {name!r:.40} instead of a file name"


def _problems(value: object, path: str = "", depth: int = 0) -> Iterator[str]:
    """Yield the problems of a configuration and of those that it contains."""
    if depth > MAX_DEPTH:
        yield f"{path[:40]}… is nested too deeply"
    elif isinstance(value, Mapping):
        for name, each in value.items():
            if len(name) > MAX_FIELD_NAME:
                yield f"{path}{name[:40]}… is a name of more than {MAX_FIELD_NAME} characters"
            yield from _field_problems(name, each, f"{path}{name}")
            yield from _problems(each, f"{path}{name}.", depth + 1)
    elif isinstance(value, list):
        for each in value:
            yield from _problems(each, path, depth + 1)
    elif isinstance(value, int) and abs(value) > MAX_NUMBER:
        yield f"{path.rstrip('.')} is more than {MAX_NUMBER:,}"


def _field_problems(name: str, value: object, path: str) -> Iterator[str]:
    if name in _OTHER_MODELS and value:
        yield f"{path} is {value!r:.40}, but models that consist of others are not supported"
    elif name in _KERNELS and (not isinstance(value, str | None) or value not in _OWN_KERNELS):
        yield f"{path} is {value!r:.40}, which is not part of transformers or compiles code"
    if name in _ROPES and isinstance(value, Mapping):
        yield from _rope_problems(value, path)
    most = MAX_LAYERS if _LAYERS.search(name) else _LIMITS.get(name, MAX_SIZE)
    if name in _LABELS and isinstance(value, Mapping) and len(value) > MAX_LABELS:
        yield f"{path} has {len(value):,} entries, more than {MAX_LABELS:,}"
    if most == MAX_LAYERS and isinstance(value, list) and len(value) > most:
        yield f"{path} has {len(value):,} entries, more than {most:,}"
    is_size = name in _SIZES or name in _TOKENS
    is_positive = _POSITIVE.fullmatch(name)
    for each in value if isinstance(value, list) else [value]:
        if is_size and each is not None and (type(each) is not int or each < _TOKENS.get(name, 0)):
            yield f"{path} is {each!r:.40} instead of an integer"
        elif name in _NUMBERS and not _is_nonnegative(each):
            yield f"{path} is {each!r:.40} instead of a number of at least 0"
        elif is_positive and not _is_positive(each):
            yield f"{path} is {each!r:.40} instead of a number above 0"
        elif (is_size or most < MAX_SIZE) and isinstance(each, int) and each > most:
            yield f"{path} is {each!r:.40}, more than {most:,}"


def _rope_problems(rope: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield the numbers with which rotary embeddings would be infinite or no numbers."""
    for layers, part in [("", rope), *((f".{name}", each) for name, each in rope.items())]:
        if not isinstance(part, Mapping):
            continue
        for name, value in part.items():
            for each in value if isinstance(value, list) else [value]:
                if name in _ROPE_POSITIVE and not _is_positive(each):
                    yield f"{path}{layers}.{name} is {each!r:.40} instead of a number above 0"
                elif name in _ROPE_NONNEGATIVE and not _is_nonnegative(each):
                    yield f"{path}{layers}.{name} is {each!r:.40} instead of a number of at least 0"


def _is_positive(value: object) -> bool:
    """Return whether a value is a finite number above 0, or null or an object."""
    return _is_nonnegative(value) and value != 0


def _is_nonnegative(value: object) -> bool:
    """Return whether a value is a finite number of at least 0, or null or an object."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value is None or isinstance(value, dict)
    return 0 <= value < math.inf
