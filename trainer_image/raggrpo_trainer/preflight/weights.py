"""Read the safetensors headers of a model folder. Must not read tensors."""

import math
import os
import re
import struct
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from raggrpo_api.foreign_files import open_regular, parse_json
from raggrpo_api.limits import (
    MAX_FOLDER_ENTRIES,
    MAX_SAFETENSORS_HEADER_BYTES,
    MAX_SAFETENSORS_HEADERS_BYTES,
)
from raggrpo_api.memory.model_families import MEASURED_ARCHITECTURES, model_family
from raggrpo_api.model_folder import (
    INDEX,
    PYTORCH_INDEX,
    UnsafeModel,
    read_model_json,
    shard_names,
    weights_entry,
)
from raggrpo_api.spec.lora import LoraSpec
from raggrpo_api.weight_formats import conversion_remedy
from raggrpo_trainer.data.file_format import LFS_POINTER, LFS_REMEDY, is_lfs_pointer

SAFETENSORS = ".safetensors"
MAX_LISTED_FILES = 3
MAX_UNITS = 1 << 40
"""Maximum size of one dimension of a tensor."""
MAX_DIMENSIONS = 8
BITS = {
    "F4": 4,
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 8),
    **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}
"""Bits of an element, by dtype in safetensors."""

EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")
"""Ends of the names of input embeddings."""
WEIGHT = ".weight"
IN_LAYER = re.compile(r"\.\d+\.")
"""Part of a tensor's name that is the number of its layer."""

Shapes = Mapping[str, Sequence[int]]
"""Shapes of tensors by name."""


class Unreadable(Exception):
    """A file is missing, damaged or of the wrong type; the message has file and remedy."""


def weight_shapes(path: Path) -> Shapes:
    """Return the shapes of the tensors that transformers loads from a folder. Raises Unreadable."""
    shapes: dict[str, list[int]] = {}
    remaining = MAX_SAFETENSORS_HEADERS_BYTES
    for file in weight_files(path):
        size, tensors = _header(file, remaining)
        remaining -= size
        shapes |= tensors
    return shapes


def count_parameters(shapes: Shapes) -> int:
    """Return the number of parameters."""
    return sum(math.prod(shape) for shape in shapes.values())


def embedding_rows(shapes: Shapes) -> int:
    """Return the number of rows of the input embedding, or 0 if no tensor has its name."""
    return next((shape[0] for name, shape in shapes.items() if name.endswith(EMBEDDINGS)), 0)


def adapted_layers(shapes: Shapes, lora: LoraSpec) -> list[Sequence[int]]:
    """Return the shapes of the linear layers that get an adapter.

    These are matrices in numbered layers. Experts of a mixture have no `nn.Linear`.
    """
    return [
        shape
        for name, shape in shapes.items()
        if len(shape) == 2 and IN_LAYER.search(name) and ".experts." not in name
        if name.endswith(WEIGHT) and lora.is_target(name.removesuffix(WEIGHT))
    ]


def missing_tensors(config: Mapping[str, Any], shapes: Shapes) -> list[str]:
    """Return the names of tensors that are missing or whose shape differs from config.json.

    Returns [] for families not in MEASURED_ARCHITECTURES, whose tensors the ranks check.
    """
    expected = expected_tensors(config)
    if "embed_tokens.weight" in shapes:  # saved without the head; transformers adds the prefix
        expected = {name.removeprefix("model."): shape for name, shape in expected.items()}
    return [name for name, shape in expected.items() if tuple(shapes.get(name, ())) != shape]


def expected_tensors(config: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Return the shapes of a model's matrices by name; {} unless in MEASURED_ARCHITECTURES."""
    sizes = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers")
    has_sizes = all(isinstance(config.get(name), int) for name in (*sizes, "vocab_size"))
    family = model_family(config)
    if family.architecture not in MEASURED_ARCHITECTURES or not has_sizes:
        return {}
    hidden, inner, heads, layers = (config[name] for name in sizes)
    outer = heads * family.head_size
    groups = (config.get("num_key_value_heads") or heads) * family.head_size
    tensors = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        tensors |= {
            f"{prefix}.self_attn.q_proj.weight": (outer, hidden),
            f"{prefix}.self_attn.k_proj.weight": (groups, hidden),
            f"{prefix}.self_attn.v_proj.weight": (groups, hidden),
            f"{prefix}.self_attn.o_proj.weight": (hidden, outer),
            f"{prefix}.mlp.gate_proj.weight": (inner, hidden),
            f"{prefix}.mlp.up_proj.weight": (inner, hidden),
            f"{prefix}.mlp.down_proj.weight": (hidden, inner),
        }
    if not config.get("tie_word_embeddings", False):
        tensors["lm_head.weight"] = (config["vocab_size"], hidden)
    return tensors


def weight_files(path: Path) -> list[Path]:
    """Return the files with weights that transformers loads from a folder. Raises Unreadable."""
    try:
        entry = weights_entry(path)
    except UnsafeModel as error:
        raise Unreadable(str(error)) from error
    if entry is None and any(path.glob(f"*{SAFETENSORS}")):
        raise Unreadable(f"{path} lacks {INDEX}: copy or download the model again")
    if entry is None or entry.suffix not in (SAFETENSORS, ".json"):
        raise _other_format(path)
    return [entry] if entry.suffix == SAFETENSORS else _shards(entry)


def _other_format(path: Path) -> Unreadable:
    entries = os.scandir(path) if path.is_dir() else ()
    names = [each.name for each in islice(entries, MAX_FOLDER_ENTRIES)]
    remedy = conversion_remedy(names, str(path))
    return Unreadable(f"{path} has no {SAFETENSORS} files: {remedy}")


def _shards(index: Path) -> list[Path]:
    """Return the files that an index names."""
    try:
        if is_lfs_pointer(index):
            raise Unreadable(f"{index} {LFS_POINTER}; {LFS_REMEDY}")
        names = shard_names(index)
    except OSError as error:
        raise Unreadable(f"{index} cannot be read: {error.strerror}") from error
    except UnsafeModel as error:
        raise Unreadable(str(error)) from error
    if others := [name for name in names if not name.endswith(SAFETENSORS)]:
        if index.name == PYTORCH_INDEX:
            raise _other_format(index.parent)
        raise Unreadable(
            f"{index}: {others[0]!r:.80} is not the name of a {SAFETENSORS} file: "
            "copy or download the model again"
        )
    return _existing([index.with_name(name) for name in names], index.name)


def _existing(files: list[Path], source: str) -> list[Path]:
    """Return the files. Raises Unreadable if some do not exist, although `source` names them."""
    missing = [file for file in files if not os.path.exists(file)]  # also of too long names
    if not missing:
        return files
    names = ", ".join(file.name[:100] for file in missing[:MAX_LISTED_FILES])
    others = f" and {len(missing) - MAX_LISTED_FILES} more" if missing[MAX_LISTED_FILES:] else ""
    raise Unreadable(
        f"{missing[0].parent} lacks {names}{others}, of {len(files)} files that {source} requires: "
        "copy or download the model again"
    )


def _header(path: Path, limit: int) -> tuple[int, dict[str, list[int]]]:
    """Return the size of the header and its shapes by name, if they fit the size of the file.

    `limit` is the number of bytes that the headers of this and all other files may have.
    """
    try:
        if is_lfs_pointer(path):
            raise Unreadable(f"{path} {LFS_POINTER}; {LFS_REMEDY}")
        with open_regular(path) as file:
            [size] = struct.unpack("<Q", file.read(8))
            if limit < size <= MAX_SAFETENSORS_HEADER_BYTES:
                raise _too_many_tensors(path.parent)
            raw = file.read(min(size, MAX_SAFETENSORS_HEADER_BYTES))
        header = parse_json(raw)
        header.pop("__metadata__", None)
        tensors, end = _shapes(path, header)
    except OSError as error:
        raise Unreadable(f"{path} cannot be read: {error.strerror}") from error
    except (struct.error, ValueError, LookupError, TypeError, AttributeError) as error:
        raise Unreadable(f"{path} is not a safetensors file: copy the file again") from error
    actual = path.stat().st_size
    expected = 8 + size + end
    if actual != expected:
        raise Unreadable(f"{path} has {actual} bytes instead of {expected}: copy the file again")
    return size, tensors


def _too_many_tensors(folder: Path) -> Unreadable:
    limit = f"{MAX_SAFETENSORS_HEADERS_BYTES:,} bytes"
    problem = f"the headers of its {SAFETENSORS} files have more than {limit}"
    return Unreadable(f"{folder}: {problem}: copy or download the model again")


def _shapes(path: Path, header: Mapping[str, Any]) -> tuple[dict[str, list[int]], int]:
    """Return the shapes of the tensors in a header, and the end of their data.

    Raises Unreadable if the type of a tensor is unknown, or if its offsets do not follow those of
    another tensor or do not fit its shape. Else raises as `_sizes`.
    """
    shapes, position = {}, 0
    for name, tensor in sorted(header.items(), key=lambda each: _sizes(each[1]["data_offsets"])):
        start, end = _sizes(tensor["data_offsets"])
        shape = shapes[name] = _sizes(tensor["shape"])
        kind = tensor.get("dtype")
        if not isinstance(kind, str) or kind not in BITS:
            raise _invalid_tensor(path, name, f"has unknown dtype {kind!r:.40}")
        if len(shape) > MAX_DIMENSIONS:
            raise _invalid_tensor(path, name, f"has more than {MAX_DIMENSIONS} dimensions")
        if start != position:
            raise _invalid_tensor(path, name, f"starts at byte {start}, not {position}")
        if math.prod(shape) * BITS[kind] != 8 * (end - start):
            raise _invalid_tensor(
                path, name, f"has {end - start} bytes, which do not fit its shape"
            )
        position = end
    return shapes, position


def _invalid_tensor(path: Path, name: str, problem: str) -> Unreadable:
    return Unreadable(f"{path}: tensor {name!r:.100} {problem}: copy or download the file again")


def _sizes(value: Any) -> list[int]:
    """Return a list of sizes in a header. Raises TypeError or ValueError."""
    sizes = [size for size in value if type(size) is int and 0 <= size <= MAX_UNITS]
    if len(sizes) < len(value):
        raise ValueError("a size is out of range")
    return sizes


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of a model folder. Raises Unreadable."""
    try:
        if is_lfs_pointer(path):
            raise Unreadable(f"{path} {LFS_POINTER}; {LFS_REMEDY}")
        return read_model_json(path)
    except OSError as error:
        raise Unreadable(f"{path} cannot be read: {error.strerror}") from error
    except UnsafeModel as error:
        raise Unreadable(str(error)) from error
