"""Read the footer of a Parquet file within limits.

pyarrow allocates 240 times its size, and aborts the process at the column of an encrypted file, so
a child process reads each footer first, which takes 0.3 s.

    metadata = parquet_metadata(path, pyarrow.parquet.read_metadata)
    with pyarrow.parquet.ParquetFile(path, metadata=metadata) as file: ...

Every reader of Parquet files uses this function. Imports only the standard library.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

from .foreign_files import UnsuitableFile, open_regular
from .limits import MAX_PARQUET_COLUMNS, MAX_PARQUET_FOOTER_BYTES

MAX_UNTRIED_BYTES = 2 << 20
"""Footer that needs at most 0.5 GiB, so that a child that cannot read it had another reason."""
_UNREADABLE = 3
"""Exit code of a child in which pyarrow raised an exception at the footer."""
_NO_MEMORY = 4
"""Exit code of a child that needed more memory than it may use."""
_TRIAL = f"""
import sys
import pyarrow.parquet
from raggrpo_api.resource_limits import limit_memory
limit_memory(1 << 30)
print("started", flush=True)
try:
    metadata = pyarrow.parquet.read_metadata(sys.argv[1])
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for column in range(min(group.num_columns, metadata.num_columns)):
            group.column(column)
except MemoryError:
    sys.exit({_NO_MEMORY})
except Exception:
    sys.exit({_UNREADABLE})
"""
_TRIAL_SECONDS = 60
_MAX_ERROR = 200
"""Characters of the error of a child."""
_TAIL = 8
"""Bytes of the footer's length and the magic number."""
_MAGIC_NUMBERS = (b"PAR1", b"PARE")
"""Of plain and encrypted footers. pyarrow rejects all others before it reads the footer."""


class _RowGroup(Protocol):
    """The metadata of a row group; implemented by pyarrow."""

    num_columns: int
    num_rows: int


class _Metadata(Protocol):
    """The metadata of a Parquet file; implemented by pyarrow."""

    num_columns: int
    num_rows: int
    num_row_groups: int

    def row_group(self, i: int) -> _RowGroup: ...


M = TypeVar("M", bound=_Metadata)


def parquet_metadata(path: Path, read_metadata: Callable[[BinaryIO], M]) -> M:
    """Return the metadata of a Parquet file, as `pyarrow.parquet.read_metadata` reads it.

    Raises UnsuitableFile if the file is special, its footer needs too much memory, it has encrypted
    or too many columns, a row group has other columns than the schema, or a number of rows is
    negative; else the errors of `read_metadata`.
    """
    with open_regular(path) as file:
        _require_safe_footer(path, file)
        metadata = read_metadata(file)
    columns = metadata.num_columns
    if columns > MAX_PARQUET_COLUMNS:
        limit = f"{columns:,} columns, limit {MAX_PARQUET_COLUMNS:,}"
        raise UnsuitableFile(f"it has {limit}; drop columns")
    _require_rows(metadata.num_rows)
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        _require_rows(group.num_rows)
        stored = group.num_columns
        if stored != columns:  # pyarrow aborts the process when it reads such a column
            problem = f"row group {number} has {stored:,} columns, its schema {columns:,}"
            raise UnsuitableFile(f"{problem}; write the file again")
    return metadata


def _require_rows(number: int) -> None:
    if number < 0:
        raise UnsuitableFile(f"it has {number:,} rows; write the file again")


def _require_safe_footer(path: Path, file: BinaryIO) -> None:
    """Raise UnsuitableFile if pyarrow cannot read the footer safely. Leaves errors to pyarrow."""
    status = os.fstat(file.fileno())
    file.seek(max(0, status.st_size - _TAIL))
    tail = file.read(_TAIL)
    file.seek(0)
    if tail[4:] not in _MAGIC_NUMBERS:
        return
    size = int.from_bytes(tail[:4], "little")
    if size > MAX_PARQUET_FOOTER_BYTES:
        raise _too_large(f"its footer has {size:,} bytes, limit {MAX_PARQUET_FOOTER_BYTES:,}")
    code = _trial(path, size, (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns))
    if code in (-signal.SIGABRT, -signal.SIGSEGV):
        problem = "it has encrypted columns, or a damaged footer"
        raise UnsuitableFile(f"{problem}; write the file again without encryption")
    if code == _NO_MEMORY or (code == _UNREADABLE and size > MAX_UNTRIED_BYTES):
        raise _too_large(f"its footer of {size:,} bytes needs more memory than allowed")


@lru_cache(maxsize=256)
def _trial(path: Path, size: int, _version: tuple[int, ...]) -> int:
    """Return the exit code of a child process with limits that reads the footer and its columns.

    `_version` differs after the file changed. Readers that open a file repeatedly need one child.
    Raises UnsuitableFile for failures that may have another cause than the file. They are not
    cached.
    """
    command = [sys.executable, "-P", "-c", _TRIAL, str(path)]
    reader = f"the process that reads its footer of {size:,} bytes"
    try:
        child = subprocess.run(
            command, capture_output=True, text=True, errors="replace",
            timeout=_TRIAL_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise _too_large(f"{reader} takes more than {_TRIAL_SECONDS} s") from error
    code = child.returncode
    if child.stdout and code in (0, _UNREADABLE, _NO_MEMORY, -signal.SIGABRT, -signal.SIGSEGV):
        return code
    if code == -signal.SIGKILL:
        raise UnsuitableFile(
            f"{reader} was killed, usually because memory ran out; free or request more memory"
        )
    last = (child.stderr.strip().splitlines() or [f"exit code {code}"])[-1]
    raise UnsuitableFile(
        f"{reader} {'failed' if child.stdout else 'could not start'} ({last[:_MAX_ERROR]}); check "
        "the installation of pyarrow, and the resource limits"
    )


def _too_large(problem: str) -> UnsuitableFile:
    return UnsuitableFile(f"{problem}; write fewer columns or larger row groups")
