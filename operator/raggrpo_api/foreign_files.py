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
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

from .limits import MAX_JSON_DEPTH, MAX_JSON_MEMORY

_MIN_READ = 1 << 20
"""Bytes to read of a file whose size is reported as smaller, such as a file of /proc."""
VALUE_BYTES = 64
"""Least memory of a value, with its reference."""
_JSON_BYTES = {"{": 240, "[": 88, ",": VALUE_BYTES}
"""Memory of the values that a character of JSON starts."""
_SURROGATE_ESCAPE = re.compile(r"\\u[dD]")
"""Start of an escaped surrogate in JSON; only a pair of surrogates is a character."""
LINK_REMEDY = "replace the link by the file, or specify the path of the file"


class UnsuitableFile(OSError):
    """The file is special, outside of its folder or too large. `strerror` has the reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.strerror = reason


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
