"""Load a checkpoint of torch.distributed.checkpoint without running code that it contains.

The reader and the planner of PyTorch unpickle anything. A checkpoint may come from a backup bucket
that others can write to, so only the classes that checkpoints of the trainer contain are loaded.
"""

import io
import pickle
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.state_dict_loader import load

from raggrpo_api.file_names import regular_file_below

from .file_digests import METADATA_FILE

_METADATA_MODULE = "torch.distributed.checkpoint.metadata"
ALLOWED_CLASSES = frozenset(
    {
        ("pathlib", "PosixPath"),
        ("torch", "Size"),
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        ("torch.serialization", "_get_layout"),
        (_METADATA_MODULE, "BytesStorageMetadata"),
        (_METADATA_MODULE, "ChunkStorageMetadata"),
        (_METADATA_MODULE, "Metadata"),
        (_METADATA_MODULE, "MetadataIndex"),
        (_METADATA_MODULE, "StorageMeta"),
        (_METADATA_MODULE, "TensorProperties"),
        (_METADATA_MODULE, "TensorStorageMetadata"),
        (_METADATA_MODULE, "_MEM_FORMAT_ENCODING"),
    }
)
"""Module and name of everything that the metadata of a checkpoint refers to, besides data types."""


def load_into(state: dict[str, Any], folder: Path) -> None:
    """Load a checkpoint into a state dict in place (collective).

    Raises CheckpointException if a file is missing, damaged or contains anything but state.
    """
    load(state, storage_reader=SafeReader(folder), planner=_SafePlanner())


def saved_keys(folder: Path) -> set[str]:
    """Return the top-level keys of the state in a checkpoint. Raises UnpicklingError."""
    metadata = SafeReader(folder).read_metadata()
    return {key.split(".")[0] for key in metadata.state_dict_metadata}


class SafeReader(FileSystemReader):
    """A reader that unpickles only ALLOWED_CLASSES, and reads only files in its folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._folder = folder

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Return the metadata. Raises UnpicklingError or ValueError if it is not plain state."""
        with regular_file_below(self._folder, METADATA_FILE).open("rb") as file:
            metadata = _MetadataUnpickler(file).load()
        if not isinstance(metadata, Metadata):
            raise pickle.UnpicklingError(f"{METADATA_FILE} contains no metadata")
        for stored in (metadata.storage_data or {}).values():
            regular_file_below(self._folder, str(stored.relative_path))
        return metadata


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        is_data_type = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_data_type or (module, name) in ALLOWED_CLASSES:
            return super().find_class(module, name)
        if (module, name) == ("builtins", "getattr"):
            return _enum_member
        raise pickle.UnpicklingError(
            f"{METADATA_FILE} refers to {module}.{name}, which no checkpoint of a job contains"
        )


def _enum_member(owner: object, name: str) -> Enum:
    """Return a member of an allowed enumeration, which older Python 3.11 pickles by `getattr`."""
    if isinstance(owner, type) and issubclass(owner, Enum) and name in owner.__members__:
        return owner[name]
    raise pickle.UnpicklingError(
        f"{METADATA_FILE} refers to attribute {name} of {owner!r}, which is no enumeration"
    )


class _SafePlanner(DefaultLoadPlanner):
    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Load a value that is not a tensor, such as a learning rate."""
        path = self.mappings[read_item.dest_index.fqn]
        set_element(self.original_state_dict, path, torch.load(value, weights_only=True))
