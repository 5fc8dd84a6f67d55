"""How many rows of a Parquet file are read at a time."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raggrpo_api import parquet_batches
from raggrpo_api.parquet_batches import ExpansionBudget, read_batches, small_batches
from raggrpo_retriever.corpus import load_corpus
from raggrpo_trainer.data.arrow_memory import batch_memory
from raggrpo_trainer.data.rows import read_rows


def random_texts(rows: int, size: int) -> list[str]:
    letters = np.random.default_rng(0).integers(97, 123, rows * size, dtype=np.uint8).tobytes()
    return [letters[row * size : (row + 1) * size].decode() for row in range(rows)]


def write_texts(path: Path, rows: int, size: int) -> None:
    """Write one row group of random texts."""
    table = pa.table({"id": [str(row) for row in range(rows)], "text": random_texts(rows, size)})
    pq.write_table(table, path, row_group_size=rows)


def count_rows(path: Path) -> int:
    return sum(1 for _ in read_rows(path, None))


def count_passages(path: Path) -> int:
    return len(load_corpus(path))


READERS = pytest.mark.parametrize("read", [count_rows, count_passages])


@READERS
def test_large_row_group_is_read_in_few_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Path], int]
) -> None:
    reads: list[int] = []

    def limited(size: int) -> AbstractContextManager[None]:
        reads.append(size)
        return nullcontext()

    monkeypatch.setattr(parquet_batches, "MAX_BATCH_BYTES", 1 << 20)
    monkeypatch.setattr(parquet_batches, "limited_memory", limited)
    path = tmp_path / "rows.parquet"
    write_texts(path, 10_000, 500)

    assert read(path) == 10_000
    assert len(reads) < 10


@READERS
def test_batch_beyond_memory_is_read_with_fewer_rows(
    tmp_path: Path, read: Callable[[Path], int]
) -> None:
    path = tmp_path / "rows.parquet"
    values = pa.array(random_texts(1, 4_000_000))
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(140, np.int32)), values)
    table = pa.table({"id": [str(row) for row in range(140)], "text": texts})
    pq.write_table(table, path, store_schema=False)  # to read texts, 560 MB

    assert read(path) == 140


@dataclass
class Rows:
    start: int
    num_rows: int

    def slice(self, offset: int, length: int | None = None) -> "Rows":
        return Rows(self.start + offset, self.num_rows - offset if length is None else length)


def metadata(*rows: int) -> SimpleNamespace:
    """Return the metadata of row groups without columns."""
    groups = [SimpleNamespace(num_columns=0, num_rows=each) for each in rows]
    return SimpleNamespace(num_row_groups=len(groups), row_group=groups.__getitem__)


@pytest.mark.parametrize("most", [2, 64, 100, 5000])
@pytest.mark.parametrize("split", [0, 7])
def test_all_rows_are_read_once_if_batches_need_too_much_memory(
    monkeypatch: pytest.MonkeyPatch, most: int, split: int
) -> None:
    monkeypatch.setattr(parquet_batches, "limited_memory", nullcontext)
    groups = (10_000, 9_000)
    failed: list[int] = []

    def read(group: int, rows: int) -> Iterator[Rows]:
        for start in range(0, groups[group], rows):
            size = min(rows, groups[group] - start)
            if start + size > 5_000 and size > most:
                failed.append(rows)
                raise MemoryError
            yield Rows(start, size - split)
            yield Rows(start + size - split, split)

    batches = list(read_batches(metadata(*groups), [], ExpansionBudget(0), read))

    places = [row for each in batches for row in range(each.start, each.start + each.num_rows)]
    assert places == [*range(groups[0]), *range(groups[1])]
    assert failed == [size for size in (4096, 64) if size > most], "the second group starts smaller"


def test_row_beyond_memory_is_reported() -> None:
    def read(_: int, rows: int) -> Iterator[Rows]:
        raise MemoryError

    with pytest.raises(MemoryError):
        list(read_batches(metadata(10), [], ExpansionBudget(0), read))


def test_rows_that_refer_to_one_text_are_split_before_they_are_expanded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parquet_batches, "MAX_BATCH_BYTES", 1_000_000)
    values = pa.array(["x" * 100_000])
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(100, np.int32)), values)
    batch = pa.record_batch({"text": texts, "row": range(100)})

    parts = list(small_batches(batch, batch_memory, ExpansionBudget(0)))

    assert [row for each in parts for row in each["row"].to_pylist()] == list(range(100))
    assert max(map(batch_memory, parts)) <= 1_000_000
