"""Iterate over the rows of data files, Parquet and JSON lines."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from raggrpo_api.data_files import DataFormat, data_format
from raggrpo_api.foreign_files import (
    DuplicateKey,
    LoneSurrogate,
    NestedTooDeeply,
    UnsuitableFile,
    limited_lines,
    open_regular,
    parse_json,
    require_own_file,
)
from raggrpo_api.limits import MAX_ROW_BYTES
from raggrpo_api.parquet_batches import (
    MAX_BATCH_ROWS,
    ROW_GROUP_REMEDY,
    ExpansionBudget,
    LargeRowGroup,
    read_batches,
    small_batches,
)
from raggrpo_api.parquet_footer import parquet_metadata
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.errors import TrainerError

from .arrow_memory import batch_memory, repeated_sizes, repeated_texts
from .columns import candidate_columns
from .file_format import LFS_POINTER, LFS_REMEDY, is_lfs_pointer, likely_encoding, wide_encoding
from .media import MEDIA_REMEDY, first_media, media_columns, media_problem

_MEDIA_BATCH = 16
"""Rows read at a time from columns with media, whose values may have megabytes."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a file."""

    place: str
    """File and line, for messages."""
    values: Mapping[str, object]
    columns: Iterable[str]
    """All columns of the file, including those that are not read."""


def read_rows(path: Path, paths: Iterable[str] | None) -> Iterator[Row]:
    """Return an iterator over the rows of a file, with at least the columns that `paths` refer to.

    None refers to all columns.

    Raises TrainerError DATA_ERROR.
    """
    if not os.path.exists(path):  # unlike `Path.exists`, False for any invalid path
        raise data_error(str(path), "no such file", "mount its volume, or correct the path")
    if path.is_dir():
        raise data_error(str(path), "is a folder", "list its files in data.trainFiles")
    try:
        require_own_file(path)
    except UnsuitableFile as error:
        raise _unsuitable_error(path, error) from error
    if is_lfs_pointer(path):
        raise data_error(str(path), LFS_POINTER, LFS_REMEDY)
    match data_format(path):
        case DataFormat.PARQUET:
            return _parquet_rows(path, paths)
        case DataFormat.JSON_LINES:
            return _json_rows(path)
    raise data_error(str(path), "unsupported file type", "use .parquet or .jsonl")


def _parquet_rows(path: Path, paths: Iterable[str] | None) -> Iterator[Row]:
    candidates = {name for each in paths or () for name in candidate_columns(each)}
    number = 0
    try:
        metadata = parquet_metadata(path, pq.read_metadata)
        texts = repeated_texts(metadata.schema)
        with pq.ParquetFile(path, metadata=metadata, read_dictionary=texts) as file:
            names = file.schema_arrow.names
            present = [name for name in names if paths is None or name in candidates]
            _reject_duplicates(path, present)
            _reject_media(path, file)
            budget = ExpansionBudget(path.stat().st_size)
            for batch in _batches(file, present, budget):
                for values in _dicts(batch, "strict", f"{path}, after row {number}"):
                    number += 1
                    budget.spend(values)
                    yield Row(f"{path}, row {number}", values, names)
    except UnsuitableFile as error:
        raise _unsuitable_error(path, error) from error
    except MemoryError as error:  # of Python, or of Arrow
        problem = "a row group needs more memory than is available"
        raise data_error(str(path), problem, "write smaller row groups and rows") from error
    except (OSError, pa.ArrowException) as error:
        problem = f"cannot be read as Parquet ({' '.join(str(error).split())})"
        raise data_error(str(path), problem, "write the file again") from error
    except UnicodeDecodeError as error:
        place = f"{path}, after row {number}"
        raise _not_utf8_error(place, likely_encoding(error.object)) from error


def _batches(
    file: pq.ParquetFile,
    columns: Sequence[str],
    budget: ExpansionBudget,
    most: int = MAX_BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some columns, at most `most` at a time. Raises UnsuitableFile."""
    sizes = repeated_sizes(file.schema, columns)
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        repeated = sum(group.column(i).num_values * size for i, size in sizes.items())
        budget.require(repeated, group.num_rows)

    def read(number: int, rows: int) -> Iterator[pa.RecordBatch]:
        yield from file.iter_batches(rows, row_groups=[number], columns=list(columns))

    for batch in read_batches(file.metadata, columns, budget, read, most):
        yield from small_batches(batch, batch_memory, budget)


def _dicts(
    batch: pa.RecordBatch, maps: Literal["lossy", "strict"], place: str
) -> list[dict[str, Any]]:
    try:
        values: list[dict[str, Any]] = batch.to_pylist(maps_as_pydicts=maps)
    except KeyError as error:
        raise data_error(place, f"a map has {error} twice", "remove one") from error
    except OverflowError as error:
        raise data_error(place, f"a date is out of range ({error})", "correct it") from error
    except (UnicodeDecodeError, pa.ArrowException):
        raise
    except (TypeError, ValueError) as error:  # such as a map whose keys are lists
        problem = f"a value cannot be read ({error})"
        raise data_error(place, problem, "write the column with another type") from error
    return values


def _reject_duplicates(path: Path, names: Sequence[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            problem = f"duplicate column: {count} columns have the name {name!r}"
            raise data_error(str(path), problem, "rename or remove all but one")


def _reject_media(path: Path, file: pq.ParquetFile) -> None:
    """Raise TrainerError for the first row with media."""
    columns = media_columns(file.schema_arrow)
    if not columns:
        return
    _reject_duplicates(path, columns)
    number = 0
    budget = ExpansionBudget(path.stat().st_size)
    for batch in _batches(file, columns, budget, _MEDIA_BATCH):
        for values in _dicts(batch, "lossy", f"{path}, after row {number}"):
            number += 1
            if name := first_media(values):
                raise _media_error(f"{path}, row {number}", name)


def _json_rows(path: Path) -> Iterator[Row]:
    with open_regular(path) as file:
        number = num_rows = 0
        for number, line in enumerate(_lines(path, file), 1):
            if not line.strip():
                continue
            values = _json_object(path, number, line, is_first=num_rows == 0)
            num_rows += 1
            place = f"{path}, line {number}"
            if name := first_media(values):
                raise _media_error(place, name)
            yield Row(place, values, values)


def _lines(path: Path, file: BinaryIO) -> Iterator[bytes]:
    try:
        yield from limited_lines(file, MAX_ROW_BYTES)
    except UnsuitableFile as error:
        raise data_error(str(path), str(error), "write one object per line") from error


def _json_object(path: Path, number: int, line: bytes, *, is_first: bool) -> dict[str, Any]:
    """Return the object in a line. Raises TrainerError DATA_ERROR."""
    place = f"{path}, line {number}"
    if number == 1 and (encoding := wide_encoding(line)):
        raise _not_utf8_error(str(path), encoding)
    try:
        text = line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise _not_utf8_error(place, likely_encoding(line)) from error
    if is_first and text.lstrip().startswith("["):
        raise data_error(
            str(path),
            "contains one JSON array",
            "expected one object per line: convert it, for example with `jq -c '.[]'`",
        )
    try:
        values = parse_json(text)
    except LoneSurrogate as error:
        problem = "contains a lone surrogate (\\ud…)"
        raise data_error(place, problem, "write the text as UTF-8, or drop the row") from error
    except DuplicateKey as error:
        raise data_error(place, f"duplicate column: {error}", "rename or remove one") from error
    except NestedTooDeeply as error:
        raise data_error(place, "nested too deeply", "flatten the object") from error
    except ValueError as error:
        raise data_error(place, f"not JSON ({error})", "write one object per line") from error
    if not isinstance(values, dict):
        raise data_error(place, "not a JSON object", "write one object per line")
    return values


def _unsuitable_error(path: Path, error: UnsuitableFile) -> TrainerError:
    is_large = isinstance(error, LargeRowGroup)
    remedy = ROW_GROUP_REMEDY if is_large else "list only files with rows in data.trainFiles"
    return data_error(str(path), str(error), remedy)


def _not_utf8_error(place: str, encoding: str) -> TrainerError:
    source = encoding or "ENCODING"
    return data_error(
        place,
        f"not UTF-8, likely {encoding}" if encoding else "not UTF-8",
        f"convert the file, for example with `iconv -f {source} -t UTF-8`",
    )


def _media_error(place: str, column: str) -> TrainerError:
    return data_error(place, media_problem(column), MEDIA_REMEDY)


def data_error(place: str, problem: str, remedy: str) -> TrainerError:
    """Return the TrainerError for a row or file: its place, the problem and the remedy."""
    return TrainerError(ExitCode.DATA_ERROR, f"{place}: {problem}; {remedy}")
