"""Read and remove files that others wrote: regular files only, below their folder, within limits.

    with open_regular(folder / "rows.jsonl") as file:
        for line in limited_lines(file, MAX_ROW_BYTES): ...

Every reader of a model folder, data file, corpus, history or script uses these functions. Imports
only the standard library.
"""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar

from .limited_memory import limited_memory
from .limits import (
    MAX_BATCH_BYTES,
    MAX_EXPANDED_BATCH_BYTES,
    MAX_EXPANSION,
    MAX_JSON_DEPTH,
    MAX_JSON_MEMORY,
    MAX_ROW_BYTES,
    MAX_ROW_GROUP_BYTES,
    MIN_EXPANDED_BYTES,
)

MAX_BATCH_ROWS = 4096
"""Rows of a parquet file that are read at a time."""
MAX_GROUP_VALUES = 1 << 26
"""Values of a column in a row group; a row may have all of them."""
_MIN_READ = 1 << 20
"""Bytes to read of a file whose size is reported as smaller, such as a file of /proc."""
_ROW_BYTES = 256
"""Least memory of a row."""
VALUE_BYTES = 64
"""Least memory of a value, with its reference."""
_JSON_BYTES = {"{": 240, "[": 88, ",": VALUE_BYTES}
"""Memory of the values that a character of JSON starts."""
_SURROGATE_ESCAPE = re.compile(r"\\u[dD]")
"""Start of an escaped surrogate in JSON; only a pair of surrogates is a character."""
LINK_REMEDY = "replace the link by the file, or specify the path of the file"
ROW_GROUP_REMEDY = (
    "rewrite the file with smaller row groups, such as row_group_size=10_000 in pyarrow"
)


class UnsuitableFile(OSError):
    """The file is special, outside of its folder or too large. `strerror` has the reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.strerror = reason


class LargeRowGroup(UnsuitableFile):
    """A row group of a parquet file is too large. `strerror` has its size and the limit."""


class DuplicateKey(ValueError):
    """A JSON object contains a key twice."""


class LoneSurrogate(ValueError):
    """A JSON value contains half of a surrogate pair, which is no character."""

    def __init__(self) -> None:
        super().__init__("it contains a lone surrogate (\\ud…)")


class NestedTooDeeply(ValueError):
    """A JSON value has more than MAX_JSON_DEPTH levels."""

    def __init__(self) -> None:
        super().__init__("it is nested too deeply")


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


def remove_folder(folder: Path, *, ignore_errors: bool = False) -> None:
    """Remove a folder of any depth. Raises OSError."""
    try:
        shutil.rmtree(folder, ignore_errors)
    except RecursionError:  # in folders that are nested 1,000 times
        done = subprocess.run(["rm", "-rf", "--", folder], capture_output=True, check=False)
        if done.returncode and not ignore_errors:
            raise OSError(done.stderr.decode(errors="replace").strip()) from None


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
        stored = os.fstat(file.fileno()).st_size
        if stored <= limit:
            max_bytes = min(limit, max(stored, _MIN_READ))
            content = file.read(max_bytes + 1)  # allocates as many bytes as it may return
            if len(content) <= max_bytes:
                return content
    raise UnsuitableFile(f"it has more than {limit:,} bytes")


def read_json(path: Path, limit: int) -> Any:
    """Return the JSON value in a regular file of at most `limit` bytes.

    Raises OSError as `read_limited` and ValueError as `parse_json`.
    """
    return parse_json(read_limited(path, limit))


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text, in UTF-8 if it is bytes.

    Raises ValueError, also for a duplicate key, deep nesting, lone surrogates and more values than
    fit into memory.
    """
    require_few_values(text)
    content = text.decode("utf-8-sig") if isinstance(text, bytes) else text
    try:
        value = json.loads(content, object_pairs_hook=unique_keys)
    except RecursionError as error:
        raise NestedTooDeeply from error
    except (json.JSONDecodeError, DuplicateKey):
        raise
    except ValueError:  # Python's limit, whose message suggests to change the interpreter
        raise ValueError("a number has too many digits") from None
    if _count(text, "{") + _count(text, "[") > MAX_JSON_DEPTH:
        _require_shallow(value, MAX_JSON_DEPTH)
    if _SURROGATE_ESCAPE.search(content):
        _require_characters(value)
    return value


def require_few_values(text: str | bytes) -> None:
    """Raise ValueError if the values of a JSON text need more than MAX_JSON_MEMORY."""
    if exceeds_json_memory(text, MAX_JSON_MEMORY):
        raise ValueError("it has too many values")


def exceeds_json_memory(text: str | bytes, limit: int) -> bool:
    """Return whether `json_memory` exceeds a limit; fast for texts that are too short for it."""
    return len(text) * max(_JSON_BYTES.values()) > limit and json_memory(text) > limit


def json_memory(text: str | bytes) -> int:
    """Return the approximate memory of the values of a JSON text, besides their characters."""
    return sum(size * _count(text, start) for start, size in _JSON_BYTES.items())


def _require_characters(value: object) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise LoneSurrogate from error


def _count(text: str | bytes, character: str) -> int:
    return text.count(character) if isinstance(text, str) else text.count(character.encode())


def _require_shallow(value: object, depth: int) -> None:
    if not isinstance(value, dict | list):
        return
    if depth == 0:
        raise NestedTooDeeply
    for each in value.values() if isinstance(value, dict) else value:
        _require_shallow(each, depth - 1)


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; the `object_pairs_hook` of a decoder. Raises DuplicateKey."""
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise DuplicateKey(f"key {name[:80]!r} occurs twice")
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


class _ColumnChunk(Protocol):
    """A column of a row group; implemented by pyarrow."""

    path_in_schema: str
    total_uncompressed_size: int
    num_values: int


class _RowGroup(Protocol):
    """The metadata of a row group; implemented by pyarrow."""

    num_columns: int
    num_rows: int

    def column(self, i: int) -> _ColumnChunk: ...


def batch_rows(group: _RowGroup, columns: Sequence[str], limit: int) -> int:
    """Return how many rows of some columns of a parquet row group to read at a time.

    A value may have the size of the row group: it is stored once, but any number of rows may refer
    to it. Raises LargeRowGroup if the row group has more than `limit` bytes or too many values, or
    UnsuitableFile if it certainly has a row of more than MAX_ROW_BYTES.
    """
    prefixes = tuple(f"{name}." for name in columns)
    chunks = [group.column(number) for number in range(group.num_columns)]
    selected = [each for each in chunks if f"{each.path_in_schema}.".startswith(prefixes)]
    size = sum(each.total_uncompressed_size for each in selected)
    limit = min(MAX_ROW_GROUP_BYTES, limit)
    values = sum(each.num_values for each in selected)
    longest = max((each.num_values for each in selected), default=0)
    if size > limit:
        raise LargeRowGroup(f"a row group has {size:,} bytes, limit {limit:,}")
    if longest > MAX_GROUP_VALUES:
        reason = f"a column of a row group has {longest:,} values, limit {MAX_GROUP_VALUES:,}"
        raise LargeRowGroup(reason)
    _require_small_rows(size, group.num_rows)
    row_bytes = max(1, size, VALUE_BYTES * values // max(1, group.num_rows))
    return max(1, min(MAX_BATCH_ROWS, MAX_BATCH_BYTES // row_bytes))


class ExpansionBudget:
    """Limits the memory of the rows of a compressed file by the size of the file."""

    def __init__(self, file_bytes: int) -> None:
        self.batch_limit = file_bytes + MAX_EXPANDED_BATCH_BYTES
        """Memory in bytes that reading a batch may need."""
        self.limit = max(MIN_EXPANDED_BYTES, MAX_EXPANSION * file_bytes)
        """Memory in bytes that all rows may need."""
        self._remaining = self.limit

    def spend(self, row: object) -> None:
        """Count a row. Raises UnsuitableFile if all rows together exceed the budget."""
        size = _size(row)
        _require_small_rows(size, 1)
        self._remaining -= _ROW_BYTES + size
        if self._remaining < 0:
            raise self._exceeded(self.limit)

    def require(self, size: int, rows: int) -> None:
        """Raise UnsuitableFile if the next `rows` rows, of `size` bytes, exceed the budget."""
        _require_small_rows(size, rows)
        if size > min(MAX_EXPANDED_BATCH_BYTES, self._remaining):
            raise self._exceeded(min(MAX_EXPANDED_BATCH_BYTES, self.limit))

    def _exceeded(self, limit: int) -> UnsuitableFile:
        return UnsuitableFile(f"its rows need more than {limit:,} bytes of memory")


Batch = TypeVar("Batch")


def limited_batches(batches: Iterable[Batch], limit: int) -> Iterator[Batch]:
    """Yield batches of rows, each read with at most `limit` bytes of memory. Raises MemoryError.

    A footer may state smaller sizes than those of the values.
    """
    remaining = iter(batches)
    while True:
        with limited_memory(limit):
            try:
                batch = next(remaining)
            except StopIteration:
                return
        yield batch


def _require_small_rows(size: int, rows: int) -> None:
    """Raise UnsuitableFile if one of some rows, of `size` bytes, has more than MAX_ROW_BYTES."""
    if size > MAX_ROW_BYTES * max(1, rows):
        raise UnsuitableFile(f"a row has more than {MAX_ROW_BYTES:,} bytes; shorten or drop it")


def _size(value: object) -> int:
    """Return the approximate size of a value in memory; nesting is that of a parquet schema."""
    if isinstance(value, str | bytes):
        return sys.getsizeof(value)
    if isinstance(value, Mapping):
        return sum(map(_size, value.values()), VALUE_BYTES)
    return sum(map(_size, value), VALUE_BYTES) if isinstance(value, list) else VALUE_BYTES


def _require_regular(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise UnsuitableFile("it is not a regular file, but a folder")
    if not stat.S_ISREG(status.st_mode):
        raise UnsuitableFile("it is not a regular file")


def _hub_blobs(root: Path) -> list[Path]:
    """Return the folders that a snapshot of the Hub's cache links to.

    They are `<repository>/blobs`, and `blobs` next to the repositories, which these share.
    """
    repository = root.parent.parent
    if root.parent.name != "snapshots":
        return []
    is_cached = repository.name.startswith(("models--", "datasets--"))
    return [repository / "blobs", *([repository.parent / "blobs"] if is_cached else [])]
