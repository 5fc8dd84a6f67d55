"""Sizes and SHA-256 digests of a checkpoint's files, and the seal over them.

COMPLETE lists both for every file. They are compared before any file is parsed, so a damaged or
replaced file is never unpickled. Anyone who can write a folder can also write a fitting COMPLETE:
the seal, keyed with a secret that only the job has, prevents this for backups.
"""

import hashlib
import hmac
import io
import os
import stat
from collections.abc import Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import Field

from raggrpo_api.file_names import path_below

MAX_THREADS = 8
"""Files that are hashed at the same time."""
METADATA_FILE = ".metadata"
"""The pickled metadata of torch.distributed.checkpoint."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """Size and content of a file."""

    size: Annotated[int, Field(ge=0, lt=2**63)]
    """Size in bytes."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """SHA-256 of the content, in hexadecimal."""


def file_sizes(folder: Path) -> dict[str, int]:
    """Return the size in bytes of all files under the folder, by relative path."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {p.relative_to(folder).as_posix(): p.stat().st_size for p in files}


def stored_files(folder: Path, written: Mapping[str, str]) -> dict[str, StoredFile]:
    """Return size and digest of all files under the folder, by relative path.

    `written` contains the digests computed while writing; the other files are read.
    """
    return {
        name: StoredFile(size, written.get(name) or sha256_of(folder / name))
        for name, size in file_sizes(folder).items()
    }


def check_sizes(folder: Path, files: Mapping[str, StoredFile]) -> None:
    """Raise ValueError unless all files exist below the folder with their sizes."""
    for name, file in files.items():
        status = _status(path_below(folder, name))
        if status is None:
            raise ValueError(f"{name} is missing")
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{name} is not a regular file")
        if status.st_size != file.size:
            raise ValueError(f"{name} has {status.st_size} bytes instead of {file.size}")


def check_digests(folder: Path, files: Mapping[str, StoredFile]) -> None:
    """Raise ValueError unless all files have their recorded content. Reads every file once."""
    check_sizes(folder, files)
    if METADATA_FILE not in files and os.path.lexists(folder / METADATA_FILE):
        raise ValueError(f"{METADATA_FILE} is not listed")
    with ThreadPoolExecutor(MAX_THREADS) as pool:
        digests = pool.map(lambda name: sha256_of(folder / name), files)
        for (name, file), digest in zip(files.items(), digests, strict=True):
            if digest != file.sha256:
                raise ValueError(f"{name} differs from its SHA-256")


def sha256_of(path: Path) -> str:
    """Return the digest of a file. Raises OSError if it cannot be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def seal_of(key: str, content: bytes) -> str:
    """Return the seal of a COMPLETE file's content: HMAC-SHA256, in hexadecimal."""
    return hmac.new(key.encode(), content, hashlib.sha256).hexdigest()


class HashingFile(io.BufferedWriter):
    """A file that computes the SHA-256 of what is written. Must not be used to seek."""

    def __init__(self, path: Path) -> None:
        super().__init__(cast(io.RawIOBase, io.FileIO(path, "wb")))
        self.sha256 = hashlib.sha256()

    def write(self, data: Any, /) -> int:
        """Write and hash all of `data`."""
        self.sha256.update(data)
        return super().write(data)


@contextmanager
def hashing_file(path: Path, digests: dict[str, str]) -> Generator[HashingFile, None, None]:
    """Open a file for writing; afterwards, set its digest by its name."""
    with HashingFile(path) as file:
        yield file
    digests[path.name] = file.sha256.hexdigest()


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
