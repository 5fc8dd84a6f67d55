"""Metadata of torch.distributed.checkpoint, from its pickle. Pure.

Every value is checked, because anyone who can write to a backup bucket chooses it.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    STORAGE_TYPES,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from .plain_pickle import Instance, paused_garbage_collection, read_plain

_MODULE = "torch.distributed.checkpoint"
MAX_DIMENSIONS = 8
MAX_COUNT = 1 << 48
"""Sizes and offsets are smaller."""


@paused_garbage_collection()
def parse_metadata(content: bytes) -> Metadata:
    """Return the content of a metadata file. Raises ValueError if it is not plain state."""
    root = _fields(read_plain(content), "metadata.Metadata")
    stored = _checked(root.get("storage_data"), dict)
    entries = _checked(root.get("state_dict_metadata"), dict)
    if sum(map(_num_chunks, entries.values())) > len(stored):  # they may share a list
        raise ValueError("it has more chunks than shards")
    tensors = {_checked(name, str): _entry(entry) for name, entry in entries.items()}
    return Metadata(tensors, storage_data={_index(key): _info(v) for key, v in stored.items()})


def _num_chunks(entry: Any) -> int:
    return 0 if _is_value(entry) else len(_checked(_tensor_fields(entry).get("chunks"), list))


def _entry(value: Any) -> STORAGE_TYPES:
    if _is_value(value):
        return BytesStorageMetadata()
    fields = _tensor_fields(value)
    size = _size(fields.get("size"))
    chunks = [_chunk(each, size) for each in fields["chunks"]]
    tensor = TensorStorageMetadata(TensorProperties(), size, chunks)
    if not _fill(chunks, size):
        raise ValueError("the chunks of a tensor do not fill it")
    return tensor


def _fill(chunks: Sequence[ChunkStorageMetadata], size: Sequence[int]) -> bool:
    """Return whether the chunks are consecutive slices of a tensor along one of its dimensions."""
    filled = [each for each in chunks if math.prod(each.sizes)]
    split = [n for n in range(len(size)) if any(each.sizes[n] != size[n] for each in filled)]
    match split:
        case []:
            return len(filled) == int(math.prod(size) > 0)
        case [n]:
            starts = sorted(each.offsets[n] for each in filled)
            ends = sorted(each.offsets[n] + each.sizes[n] for each in filled)
            return [0, *ends] == [*starts, size[n]]
    return False


def _is_value(entry: Any) -> bool:
    return getattr(entry, "name", "") == f"{_MODULE}.metadata.BytesStorageMetadata"


def _tensor_fields(entry: Any) -> dict[str, Any]:
    return _fields(entry, "metadata.TensorStorageMetadata")


def _chunk(value: Any, size: Sequence[int]) -> ChunkStorageMetadata:
    fields = _fields(value, "metadata.ChunkStorageMetadata")
    chunk = ChunkStorageMetadata(_size(fields.get("offsets")), _size(fields.get("sizes")))
    for start, length, limit in zip(chunk.offsets, chunk.sizes, size, strict=True):
        if start + length > limit:
            raise ValueError("a chunk is larger than its tensor")
    return chunk


def _index(value: Any) -> MetadataIndex:
    fields = _fields(value, "metadata.MetadataIndex")
    offset = fields.get("offset")
    return MetadataIndex(
        _checked(fields.get("fqn"), str),
        None if offset is None else _size(offset),
        None if fields.get("index") is None else _count(fields["index"]),
    )


def _info(value: Any) -> _StorageInfo:
    fields = _fields(value, "filesystem._StorageInfo")
    if fields.get("transform_descriptors"):
        raise ValueError("it has transformed shards, which no checkpoint of a job contains")
    path = _checked(fields.get("relative_path"), str)
    return _StorageInfo(path, _count(fields.get("offset")), _count(fields.get("length")))


def _size(value: Any) -> torch.Size:
    if type(value) is not Instance or value.name != "torch.Size" or len(value.arguments) != 1:
        raise ValueError("a size is missing")
    sizes = _checked(value.arguments[0], tuple)
    if len(sizes) > MAX_DIMENSIONS:
        raise ValueError(f"a size has {len(sizes)} dimensions, more than {MAX_DIMENSIONS}")
    return torch.Size([_count(each) for each in sizes])


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < MAX_COUNT:
        raise ValueError("a size or an offset is not a number within its range")
    return value


def _fields(value: Any, name: str) -> dict[str, Any]:
    if type(value) is not Instance or value.name != f"{_MODULE}.{name}":
        other = getattr(value, "name", type(value).__name__)
        raise ValueError(f"it contains {other}, but no checkpoint of a job has this in its place")
    fields: dict[str, Any] = _checked(value.state, dict)
    return fields


def _checked(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise ValueError(f"it contains {type(value).__name__} instead of {kind.__name__}")
    return value
