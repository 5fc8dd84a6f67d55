"""Load a checkpoint of torch.distributed.checkpoint without unpickling anything.

The reader and the planner of PyTorch unpickle. A checkpoint may come from a backup bucket that
others can write to, so its pickles are only read as plain state, within limits.
"""

import math
import os
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.state_dict_loader import load
from torch.futures import Future

from raggrpo_api.file_names import regular_file_below
from raggrpo_api.foreign_files import open_regular, read_limited

from .file_digests import METADATA_FILE
from .stored_metadata import parse_metadata
from .stored_values import MAX_PICKLE_BYTES, parse_tensor, parse_value

MAX_METADATA_BYTES = 2**30
"""A shard needs about 200 bytes; 70B parameters on 1,024 ranks have 2 million shards."""
MIN_METADATA_BYTES = 2**24
"""Metadata of a checkpoint whose other files are empty; larger files allow more."""
METADATA_SHARE = 8
"""Bytes of files per further byte of metadata; shards of adapters have 1,600 bytes or more."""
ARCHIVE_BYTES = 2**16
"""Upper limit for the size of an archive besides its content."""
MAX_ITEM_BYTES = 8
"""Bytes of the largest type of a tensor's elements."""
MAX_NUMBER = torch.finfo(torch.float32).max
"""Maximum of float32, the type of the tensors with which numbers are used."""


def load_into(state: dict[str, Any], reader: "SafeReader") -> None:
    """Load a checkpoint into a state dict in place (collective).

    Raises ValueError if a file is missing, damaged or contains anything but state, and OSError if
    the metadata cannot be read.
    """
    reader.read_metadata()  # `load` would log the traceback of an error
    try:
        load(state, storage_reader=reader, planner=_SafePlanner())
    except CheckpointException as failed:
        rank, (error, _) = next(iter(failed.failures.items()))
        raise ValueError(f"rank {rank} cannot load {reader.path}: {error}") from error


class SafeReader(FileSystemReader):
    """A reader that unpickles nothing, and reads only files in its folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._metadata: Metadata | None = None

    def saved_keys(self) -> set[str]:
        """Return the top-level keys of the state. Raises ValueError or OSError."""
        return {key.split(".")[0] for key in self.read_metadata().state_dict_metadata}

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Return the metadata. Raises ValueError or OSError if it is not plain state."""
        if self._metadata is None:
            file = regular_file_below(Path(self.path), METADATA_FILE)
            limit = MIN_METADATA_BYTES + _bytes_of_files(file.parent) // METADATA_SHARE
            try:
                content = read_limited(file, min(limit, MAX_METADATA_BYTES))
                self._metadata = parse_metadata(content)
            except ValueError as error:
                raise ValueError(f"{METADATA_FILE} cannot be read: {error}") from error
        return self._metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read all items. Raises ValueError, OSError or RuntimeError for a damaged shard."""
        for item in plan.items:
            content = self._archive(item)
            if item.type is LoadItemType.BYTE_IO:
                planner.load_bytes(item, BytesIO(content))
            else:
                _copy(parse_tensor(content), item, planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _archive(self, item: ReadItem) -> bytearray:
        """Return the archive with the tensor or value of an item."""
        info = self.storage_data[item.storage_index]
        entry = self.read_metadata().state_dict_metadata[item.storage_index.fqn]
        limit = MAX_PICKLE_BYTES + ARCHIVE_BYTES
        if isinstance(entry, TensorStorageMetadata):
            limit += MAX_ITEM_BYTES * math.prod(entry.size)
        if info.length > limit:
            raise ValueError(f"{item.storage_index.fqn} has more than {limit:,} bytes")
        content = bytearray(info.length)
        with open_regular(regular_file_below(Path(self.path), info.relative_path)) as file:
            file.seek(info.offset)
            if file.readinto(content) != info.length:
                raise ValueError(f"{info.relative_path} has no {item.storage_index.fqn}")
        return content


def _copy(stored: Tensor, item: ReadItem, planner: LoadPlanner) -> None:
    """Copy the requested part of a stored tensor into the state."""
    target = planner.resolve_tensor(item).detach()
    part = narrow_tensor_by_index(stored, item.storage_offsets, item.lengths)
    if part.size() != target.size():
        raise ValueError(f"{item.storage_index.fqn} has another size than its metadata")
    if part.dtype is not target.dtype:
        raise ValueError(
            f"{item.storage_index.fqn} has type {part.dtype} instead of {target.dtype}"
        )
    target.copy_(part)
    planner.commit_tensor(item, target)


class _SafePlanner(DefaultLoadPlanner):
    def load_bytes(self, read_item: ReadItem, value: BytesIO) -> None:
        """Load a value that is not a tensor, such as a learning rate."""
        name = read_item.dest_index.fqn
        loaded, current = parse_value(bytearray(value.getbuffer())), self.state_dict[name]
        if _kind(loaded) is not _kind(current):
            raise ValueError(f"{name} is a {_kind(loaded).__name__} in the checkpoint")
        _require_items(name, _items(loaded), _items(current))
        set_element(self.original_state_dict, self.mappings[name], loaded)


def _require_items(name: str, items: Sequence[object], expected: Sequence[object]) -> None:
    """Raise ValueError if the items differ in number or kind, or one is not a usable number."""
    if len(items) != len(expected):
        raise ValueError(f"{name} has {len(items):,} items in the checkpoint, not {len(expected)}")
    kinds = {_kind(each) for each in expected}
    if others := [_kind(each).__name__ for each in items if _kind(each) not in kinds]:
        raise ValueError(f"{name} contains {others[0]} in the checkpoint")
    if not all(abs(each) <= MAX_NUMBER for each in items if isinstance(each, int | float)):
        raise ValueError(
            f"{name} contains NaN, infinity or a number that is too large in the checkpoint"
        )


def _items(value: object) -> Sequence[object]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list | tuple) else [value]


def _kind(value: object) -> type:
    return float if isinstance(value, int | float) else type(value)


def _bytes_of_files(folder: Path) -> int:
    """Return the size of the data files of a checkpoint in bytes."""
    files = (each for each in os.scandir(folder) if each.name != METADATA_FILE)
    return sum(each.stat(follow_symlinks=False).st_size for each in files)
