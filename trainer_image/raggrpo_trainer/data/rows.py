"""Iterate over the rows of data files, `.parquet` and `.jsonl`."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.errors import TrainerError

from .columns import candidate_columns

_SURROGATE_ESCAPE = b"\\ud"
"""Start of an escaped surrogate in JSON; only a pair of surrogates is a character."""


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
    if not path.exists():
        raise data_error(str(path), "no such file", "mount its volume, or correct the path")
    if not path.is_file():
        raise data_error(str(path), "is a folder", "list its files in data.trainFiles")
    match path.suffix:
        case ".parquet":
            return _parquet_rows(path, paths)
        case ".jsonl":
            return _jsonl_rows(path)
    raise data_error(str(path), "unsupported file type", "use .parquet or .jsonl")


def _parquet_rows(path: Path, paths: Iterable[str] | None) -> Iterator[Row]:
    candidates = {name for each in paths or () for name in candidate_columns(each)}
    number = 0
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            present = [name for name in names if paths is None or name in candidates]
            for batch in file.iter_batches(columns=present):
                for values in batch.to_pylist():
                    number += 1
                    yield Row(f"{path}, row {number}", values, names)
    except (OSError, pa.ArrowException) as error:
        problem = f"cannot be read as Parquet ({' '.join(str(error).split())})"
        raise data_error(str(path), problem, "write the file again") from error


def _jsonl_rows(path: Path) -> Iterator[Row]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            place = f"{path}, line {number}"
            try:
                values = json.loads(line)
                if _SURROGATE_ESCAPE in line.lower():
                    json.dumps(values, ensure_ascii=False).encode()
            except UnicodeEncodeError as error:
                problem = "contains a lone surrogate (\\ud…)"
                raise data_error(
                    place, problem, "write the text as UTF-8, or drop the row"
                ) from error
            except ValueError as error:
                raise data_error(
                    place, f"not JSON ({error})", "write one object per line"
                ) from error
            except RecursionError as error:
                raise data_error(place, "nested too deeply", "flatten the object") from error
            if not isinstance(values, dict):
                raise data_error(place, "not a JSON object", "write one object per line")
            yield Row(place, values, values)


def data_error(place: str, problem: str, remedy: str) -> TrainerError:
    """Return the TrainerError for a row or file: its place, the problem and the remedy."""
    return TrainerError(ExitCode.DATA_ERROR, f"{place}: {problem}; {remedy}")
