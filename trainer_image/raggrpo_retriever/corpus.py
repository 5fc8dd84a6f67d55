"""Read the passages of a corpus file and their vectors. Must not search."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raggrpo_api.foreign_files import (
    ExpansionBudget,
    UnsuitableFile,
    batch_rows,
    limited_lines,
    open_regular,
    require_own_file,
)
from raggrpo_api.limits import MAX_ROW_BYTES

EXAMPLE = '{"id": "7", "contents": "..."}'


@dataclass(frozen=True, slots=True)
class Passage:
    """A searchable text; `id` is unique in its corpus, `contents` is not blank."""

    id: str
    contents: str


class CorpusError(Exception):
    """The corpus cannot be served. The message is one line with place, problem and remedy."""


def load_corpus(path: Path) -> list[Passage]:
    """Read a `.jsonl` or `.parquet` file of {"id", "contents"} or {"id", "text"[, "title"]} rows.

    A title becomes a line before the text. Integer ids become strings. Raises CorpusError with
    file, line or row (from 1) and remedy.
    """
    if not path.exists():
        raise CorpusError(f"{path}: no such file; use the absolute path of a corpus file")
    _require_own_file(path)
    match path.suffix:
        case ".jsonl":
            records = _jsonl_records(path)
        case ".parquet":
            records = _parquet_records(path)
        case _:
            raise CorpusError(f"{path}: unsupported file type; use .jsonl or .parquet")
    passages = list(_unique_passages(path, records))
    if not passages:
        raise CorpusError(
            f"{path} contains no passages; add one record such as {EXAMPLE} per passage"
        )
    return passages


def load_vectors(path: Path, count: int) -> np.ndarray:
    """Read the vectors of `count` passages, float32 [count, D] in corpus order.

    Raises CorpusError if the file has another type or length, or contains NaN or infinity.
    """
    if path.exists():
        _require_own_file(path)
    try:  # mapped, because the header of a small file may name any size
        vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise CorpusError(
            f"{path}: cannot be read as .npy ({_line(error)}); write the file with numpy.save()"
        ) from error
    if not isinstance(vectors, np.ndarray) or vectors.ndim != 2 or vectors.dtype.kind != "f":
        kind = (
            f"{vectors.dtype} {vectors.shape}" if isinstance(vectors, np.ndarray) else "an archive"
        )
        raise CorpusError(
            f"{path}: expected a float32 array [N, D], found {kind}; save a single array"
        )
    if len(vectors) != count:
        raise CorpusError(
            f"{path}: contains {len(vectors)} vectors, but the corpus has {count} passages; "
            "embed the corpus again"
        )
    if broken := np.flatnonzero(~np.isfinite(vectors).all(axis=1)).tolist():
        raise CorpusError(
            f"{path}: row {broken[0] + 1} contains NaN or infinity; embed the corpus again"
        )
    return np.array(vectors, dtype=np.float32)


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
                yield f"line {number}", json.loads(line)
            except json.JSONDecodeError as error:
                raise CorpusError(
                    f"{path}, line {number}: invalid JSON at column {error.colno} ({error.msg}); "
                    f"write one object per line, such as {EXAMPLE}"
                ) from error
            except UnicodeDecodeError as error:
                raise CorpusError(
                    f"{path}, line {number}: not valid UTF-8; save the file in UTF-8"
                ) from error
            except (ValueError, RecursionError) as error:
                raise CorpusError(
                    f"{path}, line {number}: cannot be read as JSON ({_line(error)}); write one "
                    f"object per line, such as {EXAMPLE}"
                ) from error


def _parquet_records(path: Path) -> Iterator[Record]:
    try:
        yield from _rows(path)
    except (OSError, pa.ArrowException) as error:
        raise CorpusError(
            f"{path}: cannot be read as Parquet ({_line(error)}); write the file again"
        ) from error


def _rows(path: Path) -> Iterator[Record]:
    with pq.ParquetFile(path) as file:
        known = ("id", "contents", "text", "title")
        columns = [name for name in known if name in file.schema_arrow.names]
        budget = ExpansionBudget(path.stat().st_size)
        row = 0
        for batch in _batches(file, columns):
            for record in batch.to_pylist():
                row += 1
                budget.spend(record)
                yield f"row {row}", record


def _batches(file: pq.ParquetFile, columns: list[str]) -> Iterator[pa.RecordBatch]:
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        stored = [group.column(each) for each in range(group.num_columns)]
        size = sum(c.total_uncompressed_size for c in stored if c.path_in_schema in columns)
        yield from file.iter_batches(batch_rows(size), row_groups=[number], columns=columns)


def _unique_passages(path: Path, records: Iterable[Record]) -> Iterator[Passage]:
    places: dict[str, str] = {}
    for place, record in records:
        try:
            passage = _passage(record)
        except ValueError as error:
            raise CorpusError(f"{path}, {place}: {error}") from error
        if passage.id in places:
            raise CorpusError(
                f"{path}, {place}: duplicate id {passage.id!r}, first used in "
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
