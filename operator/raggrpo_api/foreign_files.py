"""Read files that others wrote: regular files only, below their folder, within limits.

    with open_regular(folder / "rows.jsonl") as file:
        for line in limited_lines(file, MAX_ROW_BYTES): ...

Every reader of a model folder, data file, corpus, history or script uses these functions. Imports
only the standard library.
"""

import json
import os
import stat
from collections.abc import Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

from .limits import MAX_BATCH_BYTES, MAX_EXPANSION, MAX_ROW_GROUP_BYTES, MIN_EXPANDED_BYTES

MAX_BATCH_ROWS = 4096
"""Rows of a parquet file that are read at a time."""
_ROW_BYTES = 256
"""Least memory of a row."""
_VALUE_BYTES = 64
"""Least memory of a list or a mapping."""
LINK_REMEDY = "replace the link by the file, or specify the path of the file"


class UnsuitableFile(OSError):
    """The file is special, outside of its folder or too large. `strerror` has the reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.strerror = reason


class DuplicateKey(ValueError):
    """A JSON object contains a key twice."""


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading. Never blocks, and never opens a device.

    Raises UnsuitableFile if the path is not a regular file, else OSError.
    """
    _require_regular(os.stat(path))  # opening some devices has side effects
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _require_regular(os.fstat(descriptor))  # the path may have been replaced
    except OSError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def require_own_file(path: Path) -> None:
    """Raise UnsuitableFile unless the path is a regular file that no link leads out of its folder.

    Links within the folder are accepted, and those of a snapshot of the Hugging Face Hub's cache.
    """
    _require_regular(os.stat(path))
    require_below(path, path.parent)


def require_below(path: Path, folder: Path) -> None:
    """Raise UnsuitableFile if a link in `folder` leads `path` out of it."""
    root = Path(os.path.realpath(folder))
    target = Path(os.path.realpath(path))
    if not any(target.is_relative_to(each) for each in (root, *_hub_blobs(root))):
        raise UnsuitableFile(f"it is a link to {target}, outside of its folder; {LINK_REMEDY}")


def read_limited(path: Path, limit: int) -> bytes:
    """Return the content of a regular file of at most `limit` bytes.

    Raises UnsuitableFile if it is special or larger, else OSError.
    """
    with open_regular(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise UnsuitableFile(f"it has more than {limit:,} bytes")
    return content


def read_json(path: Path, limit: int) -> Any:
    """Return the JSON value in a regular file of at most `limit` bytes.

    Raises OSError as `read_limited` and ValueError as `parse_json`.
    """
    return parse_json(read_limited(path, limit))


def parse_json(text: str | bytes) -> Any:
    """Return a JSON value. Raises ValueError, also for a duplicate key and for deep nesting."""
    try:
        return json.loads(text, object_pairs_hook=unique_keys)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; the `object_pairs_hook` of a decoder. Raises DuplicateKey."""
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise DuplicateKey(f"key {name!r} occurs twice")
        values[name] = value
    return values


def limited_lines(file: BinaryIO, limit: int) -> Iterator[bytes]:
    """Yield the lines of a file. Raises UnsuitableFile at a line of more than `limit` bytes."""
    number = 0
    while line := file.readline(limit + 1):
        number += 1
        if len(line) > limit:
            raise UnsuitableFile(f"line {number} has more than {limit:,} bytes")
        yield line


def batch_rows(group_bytes: int) -> int:
    """Return how many rows of a parquet row group to read at a time.

    `group_bytes` is the uncompressed size of the columns to read, each of whose values may be as
    large: a value is stored once, but any number of rows may refer to it.
    Raises UnsuitableFile if the row group exceeds MAX_ROW_GROUP_BYTES.
    """
    if group_bytes > MAX_ROW_GROUP_BYTES:
        reason = f"a row group has {group_bytes:,} bytes, more than {MAX_ROW_GROUP_BYTES:,}"
        raise UnsuitableFile(f"{reason}; write smaller row groups")
    return max(1, min(MAX_BATCH_ROWS, MAX_BATCH_BYTES // max(1, group_bytes)))


class ExpansionBudget:
    """Limits the memory of the rows of a compressed file by the size of the file."""

    def __init__(self, file_bytes: int) -> None:
        self._limit = max(MIN_EXPANDED_BYTES, MAX_EXPANSION * file_bytes)
        self._remaining = self._limit

    def spend(self, row: object) -> None:
        """Count a row. Raises UnsuitableFile if all rows together exceed the budget."""
        self._remaining -= _ROW_BYTES + _size(row)
        if self._remaining < 0:
            raise UnsuitableFile(f"its rows need more than {self._limit:,} bytes of memory")


def _size(value: object) -> int:
    """Return the approximate size of a value in memory; nesting is that of a parquet schema."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_size, value.values()), _VALUE_BYTES)
    return sum(map(_size, value), _VALUE_BYTES) if isinstance(value, list) else _VALUE_BYTES


def _require_regular(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise UnsuitableFile("it is not a regular file, but a folder")
    if not stat.S_ISREG(status.st_mode):
        raise UnsuitableFile("it is not a regular file")


def _hub_blobs(root: Path) -> list[Path]:
    """Return the folder that a snapshot of the Hub's cache links to, `<repository>/blobs`."""
    return [root.parent.parent / "blobs"] if root.parent.name == "snapshots" else []
