"""Read the rows of a Parquet file in batches, within limits on memory.

    budget = ExpansionBudget(path.stat().st_size)
    for batch in read_batches(file.metadata, columns, budget, read):
        for part in small_batches(batch, memory, budget):
            for row in part.to_pylist():
                budget.spend(row)

Every reader of the rows of Parquet files uses these functions. Imports only the standard library:
callers pass files of pyarrow.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, Self, TypeVar

from .foreign_files import VALUE_BYTES, UnsuitableFile
from .limited_memory import limited_memory
from .limits import (
    MAX_BATCH_BYTES,
    MAX_EXPANDED_BATCH_BYTES,
    MAX_EXPANSION,
    MAX_ROW_BYTES,
    MAX_ROW_GROUP_BYTES,
    MIN_EXPANDED_BYTES,
)

MAX_BATCH_ROWS = 4096
"""Rows that are read at a time."""
MAX_GROUP_VALUES = 1 << 26
"""Values of a column in a row group; a row may have all of them."""
_FEWER_ROWS = 64
"""Divides the rows that are read at a time after a batch needed too much memory."""
_ROW_BYTES = 256
"""Least memory of a row."""
ROW_GROUP_REMEDY = (
    "rewrite the file with smaller row groups, such as row_group_size=10_000 in pyarrow"
)


class LargeRowGroup(UnsuitableFile):
    """A row group of a parquet file is too large. `strerror` has its size and the limit."""


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


class _Metadata(Protocol):
    """The metadata of a file; implemented by pyarrow."""

    num_row_groups: int

    def row_group(self, i: int) -> _RowGroup: ...


class _Batch(Protocol):
    """Rows in memory; implemented by pyarrow."""

    num_rows: int

    def slice(self, offset: int, length: int | None = None) -> Self: ...


Batch = TypeVar("Batch", bound=_Batch)


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


def read_batches(
    metadata: _Metadata,
    columns: Sequence[str],
    budget: ExpansionBudget,
    read: Callable[[int, int], Iterable[Batch]],
    most: int = MAX_BATCH_ROWS,
) -> Iterator[Batch]:
    """Yield the rows of some columns of a file in batches of at most `most` rows.

    `read(number, rows)` returns a row group in batches of at most `rows` rows. Footers may
    understate sizes, and any number of rows may refer to one value: the rows of a batch that needs
    too much memory are read again in smaller batches, and so are all later rows.

    Raises LargeRowGroup, UnsuitableFile if the file certainly has a row of more than MAX_ROW_BYTES,
    or MemoryError if a single row needs too much memory.
    """
    for number in range(metadata.num_row_groups):
        rows = min(most, _batch_rows(metadata.row_group(number), columns, budget.limit))
        done = 0
        while rows:
            seen = 0
            try:
                for batch in _limited(read(number, rows), budget.batch_limit):
                    seen += batch.num_rows
                    if seen > done:
                        unread = batch.slice(max(0, batch.num_rows - (seen - done)))
                        done = seen
                        yield unread
                rows = 0
            except MemoryError:
                if rows == 1:
                    raise
                most = rows = max(1, rows // _FEWER_ROWS)


def small_batches(
    batch: Batch, memory: Callable[[Batch], int], budget: ExpansionBudget
) -> Iterator[Batch]:
    """Split a batch until its rows need at most MAX_BATCH_BYTES as Python objects.

    `memory` returns the bytes that a batch needs as Python objects. Raises UnsuitableFile if they
    exceed the budget.
    """
    size = memory(batch)
    if size > MAX_BATCH_BYTES and batch.num_rows > 1:
        half = batch.num_rows // 2
        for part in (batch.slice(0, half), batch.slice(half)):
            yield from small_batches(part, memory, budget)
        return
    budget.require(size, batch.num_rows)
    yield batch


def _batch_rows(group: _RowGroup, columns: Sequence[str], limit: int) -> int:
    """Return how many rows of some columns of a row group to read at a time.

    Raises LargeRowGroup if the row group has more than `limit` bytes or too many values, or
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
    row_bytes = max(1, max(size, VALUE_BYTES * values) // max(1, group.num_rows))
    return max(1, min(MAX_BATCH_ROWS, MAX_BATCH_BYTES // row_bytes))


def _limited(batches: Iterable[Batch], limit: int) -> Iterator[Batch]:
    """Yield batches of rows, each read with at most `limit` bytes of memory. Raises MemoryError."""
    remaining = iter(batches)
    while True:
        with limited_memory(limit):
            batch = next(remaining, None)
        if batch is None:
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
