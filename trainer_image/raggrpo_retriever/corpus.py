"""Read the passages of a corpus file and their vectors. Must not search."""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raggrpo_api.data_files import DataFormat, data_format
from raggrpo_api.fields.text import printable
from raggrpo_api.foreign_files import (
    UnsuitableFile,
    limited_lines,
    open_regular,
    parse_json,
    require_own_file,
)
from raggrpo_api.limits import MAX_ROW_BYTES
from raggrpo_api.parquet_batches import (
    ROW_GROUP_REMEDY,
    ExpansionBudget,
    LargeRowGroup,
    read_batches,
    small_batches,
)
from raggrpo_api.parquet_footer import parquet_metadata

EXAMPLE = '{"id": "7", "contents": "..."}'
_BLOCK = 2048
"""Vectors that are in memory at a time."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A searchable text; `id` is unique in its corpus, `contents` is not blank."""

    id: str
    contents: str


class CorpusError(Exception):
    """The corpus cannot be served. The message is one line with place, problem and remedy."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


def load_corpus(path: Path) -> list[Passage]:
    """Read a file in JSON lines or Parquet of {"id", "contents"} or {"id", "text"[, "title"]} rows.

    A title becomes a line before the text. Integer ids become strings. Raises CorpusError with
    file, line or row (from 1) and remedy.
    """
    if not os.path.exists(path):  # unlike `Path.exists`, False for any invalid path
        raise CorpusError(f"{path}: no such file; use the absolute path of a corpus file")
    _require_own_file(path)
    match data_format(path):
        case DataFormat.JSON_LINES:
            records = _jsonl_records(path)
        case DataFormat.PARQUET:
            records = _parquet_records(path)
        case None:
            raise CorpusError(f"{path}: unsupported file type; use .jsonl or .parquet")
    passages = list(_unique_passages(path, records))
    if not passages:
        raise CorpusError(
            f"{path} contains no passages; add one record such as {EXAMPLE} per passage"
        )
    return passages


def load_vectors(path: Path, count: int, dimension: int) -> np.ndarray:
    """Map the vectors of `count` passages, floats [count, dimension] in corpus order.

    Raises CorpusError if the file has another type or shape, or contains NaN or infinity in
    FP32.
    """
    if os.path.exists(path):
        _require_own_file(path)
    try:
        vectors = open_vectors(path)
    except Exception as error:  # numpy parses the header as Python, with errors of any type
        raise CorpusError(
            f"{path}: cannot be read as .npy ({_line(error)}); write the file with numpy.save()"
        ) from error
    if vectors.ndim != 2 or vectors.dtype.kind != "f":
        kind = f"{vectors.dtype} {vectors.shape}"[:100]
        raise CorpusError(
            f"{path}: expected a float32 array [N, D], found {kind}; save a single array"
        )
    if len(vectors) != count:
        raise CorpusError(
            f"{path}: contains {len(vectors)} vectors, but the corpus has {count} passages; "
            "embed the corpus again"
        )
    if vectors.shape[1] != dimension:
        raise CorpusError(
            f"{path}: vectors have dimension {vectors.shape[1]}, but the embedding model "
            f"has dimension {dimension}; embed the corpus with this model"
        )
    for start in range(0, count, _BLOCK):
        block = vectors[start : start + _BLOCK]
        with np.errstate(over="ignore"):
            finite = np.isfinite(block.astype(np.float32))
        if broken := np.flatnonzero(~finite.all(axis=1)).tolist():
            row = start + broken[0] + 1
            raise CorpusError(f"{path}: row {row} contains NaN or infinity; embed the corpus again")
    return vectors


def open_vectors(path: Path) -> np.ndarray:
    """Map a .npy file: the header of a small file may name any size. Raises any exception.

    Unlike numpy.load, this reads neither archives nor pickles.
    """
    vectors: np.ndarray = np.lib.format.open_memmap(path, mode="r")  # type: ignore[no-untyped-call]
    return vectors


def _require_own_file(path: Path) -> None:
    try:
        require_own_file(path)
    except UnsuitableFile as error:
        raise CorpusError(f"{path}: {error}; use a regular file") from error


Record = tuple[str, object]
"""Place in the file, such as "line 3", and decoded value."""


def _jsonl_records(path: Path) -> Iterator[Record]:
    try:
        yield from _lines(path)
    except UnsuitableFile as error:
        raise CorpusError(f"{path}: {error}; write one passage per line") from error
    except OSError as error:
        raise CorpusError(
            f"{path}: cannot be read ({error.strerror}); make the file readable"
        ) from error


def _lines(path: Path) -> Iterator[Record]:
    with open_regular(path) as file:
        for number, line in enumerate(limited_lines(file, MAX_ROW_BYTES), start=1):
            if not line.strip():
                continue
            try:
                yield f"line {number}", parse_json(line)
            except json.JSONDecodeError as error:
                raise CorpusError(
                    f"{path}, line {number}: invalid JSON at column {error.colno} ({error.msg}); "
                    f"write one object per line, such as {EXAMPLE}"
                ) from error
            except UnicodeDecodeError as error:
                raise CorpusError(
                    f"{path}, line {number}: not valid UTF-8; save the file in UTF-8"
                ) from error
            except ValueError as error:
                raise CorpusError(
                    f"{path}, line {number}: cannot be read as JSON ({_line(error)}); write one "
                    f"object per line, such as {EXAMPLE}"
                ) from error


def _parquet_records(path: Path) -> Iterator[Record]:
    try:
        yield from _rows(path)
    except LargeRowGroup as error:
        raise CorpusError(f"{path}: {error}; {ROW_GROUP_REMEDY}") from error
    except UnsuitableFile as error:
        raise CorpusError(f"{path}: {error}; split its passages, or use JSON lines") from error
    except MemoryError as error:  # of Python, or of Arrow
        raise CorpusError(
            f"{path}: a row group needs more memory than is available; write smaller row groups "
            "and passages"
        ) from error
    except (OSError, pa.ArrowException) as error:
        raise CorpusError(
            f"{path}: cannot be read as Parquet ({_line(error)}); write the file again"
        ) from error
    except UnicodeDecodeError as error:
        raise CorpusError(f"{path}: not valid UTF-8; save the texts in UTF-8") from error


def _rows(path: Path) -> Iterator[Record]:
    metadata = parquet_metadata(path, pq.read_metadata)
    with pq.ParquetFile(path, metadata=metadata) as file:
        known = ("id", "contents", "text", "title")
        columns = [name for name in known if name in file.schema_arrow.names]
        budget = ExpansionBudget(path.stat().st_size)
        row = 0
        _require_types(path, file.schema_arrow, columns)
        for batch in _batches(file, columns, budget):
            for record in batch.to_pylist():
                row += 1
                budget.spend(record)
                yield f"row {row}", record


def _require_types(path: Path, schema: pa.Schema, columns: list[str]) -> None:
    """Raise CorpusError unless the columns are unique and have strings, or integers as ids."""
    for name in columns:
        if schema.names.count(name) > 1:
            raise CorpusError(f"{path}: two columns have the name {name!r}; rename one")
    for field in (each for each in schema if each.name in columns):
        is_id = field.name == "id" and pa.types.is_integer(field.type)
        if not (is_id or pa.types.is_null(field.type) or _is_text(field.type)):
            problem = f"column {field.name!r} has type {str(field.type)[:80]}"
            raise CorpusError(f"{path}: {problem}; write it as strings")


def _is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    checks = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(check(kind) for check in checks)


def _batches(
    file: pq.ParquetFile, columns: list[str], budget: ExpansionBudget
) -> Iterator[pa.RecordBatch]:
    def read(number: int, rows: int) -> Iterator[pa.RecordBatch]:
        yield from file.iter_batches(rows, row_groups=[number], columns=columns)

    for batch in read_batches(file.metadata, columns, budget, read):
        yield from small_batches(batch, _batch_memory, budget)


def _batch_memory(batch: pa.RecordBatch) -> int:
    """Return the approximate memory of texts and integers as Python objects."""
    return sum(map(_memory, batch.columns))


def _memory(array: pa.Array) -> int:
    if not pa.types.is_dictionary(array.type):
        return int(array.nbytes)
    lengths = pc.binary_length(array.dictionary)  # many rows may refer to one text
    return int(pc.sum(lengths.take(array.indices), min_count=0).as_py())


def _unique_passages(path: Path, records: Iterable[Record]) -> Iterator[Passage]:
    places: dict[str, str] = {}
    for place, record in records:
        try:
            passage = _passage(record)
        except ValueError as error:
            raise CorpusError(f"{path}, {place}: {error}") from error
        if passage.id in places:
            raise CorpusError(
                f"{path}, {place}: duplicate id {passage.id!r:.100}, first used in "
                f"{places[passage.id]}; make ids unique"
            )
        places[passage.id] = place
        yield passage


def _passage(record: object) -> Passage:
    if not isinstance(record, dict):
        raise ValueError(f"not a JSON object; write one object per line, such as {EXAMPLE}")
    key = record.get("id")
    if isinstance(key, bool) or not isinstance(key, str | int) or key == "":
        raise ValueError(
            f'"id" must be a non-empty string or an integer; write a record such as {EXAMPLE}'
        )
    field = "contents" if "contents" in record else "text"
    text = record.get(field)
    if not isinstance(text, str) or not text.strip():
        raise ValueError(
            f'"{field if field in record else "contents"}" is missing, blank or not a string; '
            f"write a record such as {EXAMPLE}, or remove it"
        )
    title = record.get("title")
    if title is not None and not isinstance(title, str):
        raise ValueError('"title" is not a string; write it as a string, or remove it')
    return Passage(str(key), f"{title}\n{text}" if title and field == "text" else text)


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
