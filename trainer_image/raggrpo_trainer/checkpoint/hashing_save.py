"""Save with torch.distributed.checkpoint, and compute the digests of the files while writing."""

import io
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from .file_digests import hashing_file


def save_hashed(state: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Save a state dict (collective); return the SHA-256 of the files of this rank by name.

    Raises CheckpointException if a file cannot be written.
    """
    files = _HashingFileSystem()
    writer = FileSystemWriter(folder)
    writer.fs = files
    save(dict(state), storage_writer=writer)
    return files.digests


class _HashingFileSystem(FileSystem):
    def __init__(self) -> None:
        self.digests: dict[str, str] = {}

    @contextmanager
    def create_stream(
        self, path: str | os.PathLike[str], mode: str
    ) -> Generator[io.IOBase, None, None]:
        if mode != "wb":
            raise ValueError(f"{path} is opened in mode {mode!r}, but a save only writes")
        with hashing_file(Path(path), self.digests) as file:
            yield file

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        super().rename(path, new_path)
        self.digests[Path(new_path).name] = self.digests.pop(Path(path).name)
