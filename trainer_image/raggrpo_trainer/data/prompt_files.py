"""Read prompts from a job's data files; errors name the file, row and column at fault."""

import dataclasses
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from raggrpo_api.exit_codes import ExitCode
from raggrpo_api.placeholders import column_placeholders, names_context
from raggrpo_api.spec.data import DataSpec
from raggrpo_api.spec.retrieval import RetrievalMode, RetrievalSpec
from raggrpo_api.spec.reward import ANSWER_REWARDS, RewardSpec
from raggrpo_trainer.errors import TrainerError


@dataclass(frozen=True, slots=True)
class Prompt:
    """One row of the data."""

    index: int
    """Row number across all files, from 0; part of the key of the sample's random seed."""
    text: str
    query: str
    """The search query; same as `text` unless a query column is set."""
    answer: tuple[str, ...]
    """Accepted answers; empty if the data has none and no reward needs one."""
    context: str
    """Dialogue context; empty if the data has none and no endpoint needs one."""
    columns: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Values of the columns that request templates name."""


def read_prompts(
    files: Sequence[str], data: DataSpec, retrieval: RetrievalSpec, reward: RewardSpec | None = None
) -> list[Prompt]:
    """Return the first `data.maxSamples` rows (0: all) of `.parquet` and `.jsonl` files, in order.

    Answer and context columns are required only if a reward or an endpoint needs them.
    Raises TrainerError DATA_ERROR with file, row, column and remedy.
    """
    needed, named = needed_fields(data, retrieval, reward), column_placeholders(retrieval, reward)
    rows = (row for file in files for row in _rows(Path(file), data, named))
    limited = islice(rows, data.max_samples or None)
    prompts = [_prompt(index, row, data, needed, named) for index, row in enumerate(limited)]
    if files and not prompts:
        raise _error(", ".join(files), "there is no row", "add one line for each prompt")
    return prompts


def needed_fields(
    data: DataSpec, retrieval: RetrievalSpec, reward: RewardSpec | None = None
) -> set[str]:
    """Return the fields of `data.columns` that every row must have a value for."""
    needed = {"prompt"}
    if data.columns.query:
        needed.add("query")
    if retrieval.mode is RetrievalMode.REWARD or names_context(retrieval, reward):
        needed.add("context")
    if reward and any(term.name in ANSWER_REWARDS for term in reward.functions):
        needed.add("answer")
    return needed


def stage_files(files: Sequence[str], folder: Path) -> list[str]:
    """Copy the files to a folder on a fast disk and return their new paths.

    An existing copy with the same size and mtime is reused. Raises TrainerError DATA_ERROR.
    """
    staged = []
    for number, file in enumerate(files):
        source, target = Path(file), folder / f"{number}-{Path(file).name}"
        try:
            _copy(source, target)
        except OSError as error:
            raise _error(
                file,
                f"cannot be copied to {target} ({error})",
                "make room there, or set data.stageToLocalDisk: false",
            ) from error
        staged.append(str(target))
    return staged


@dataclass(frozen=True, slots=True)
class _Row:
    place: str
    values: Mapping[str, object]
    columns: Iterable[str]
    """All columns in the file, read or not."""


def _rows(path: Path, data: DataSpec, named: Iterable[str]) -> Iterator[_Row]:
    if not path.exists():
        raise _error(str(path), "there is no such file", "mount it, or mend data.trainFiles")
    match path.suffix:
        case ".parquet":
            return _parquet_rows(path, {*data.columns.model_dump().values(), *named})
        case ".jsonl":
            return _jsonl_rows(path)
    raise _error(str(path), "unknown kind of file", "name it .parquet or .jsonl")


def _parquet_rows(path: Path, wanted: set[str]) -> Iterator[_Row]:
    number = 0
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            present = [name for name in names if name in wanted]
            for batch in file.iter_batches(columns=present):
                for values in batch.to_pylist():
                    number += 1
                    yield _Row(f"{path}, row {number}", values, names)
    except (OSError, pa.ArrowException) as error:
        what = f"not readable as parquet ({' '.join(str(error).split())})"
        raise _error(str(path), what, "write the file again") from error


def _jsonl_rows(path: Path) -> Iterator[_Row]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            place = f"{path}, line {number}"
            try:
                values = json.loads(line)
            except ValueError as error:
                raise _error(place, f"not JSON ({error})", "write one object per line") from error
            if not isinstance(values, dict):
                raise _error(place, "not a JSON object", "write one object per line")
            yield _Row(place, values, values)


def _prompt(
    index: int, row: _Row, data: DataSpec, needed: set[str], named: Mapping[str, str]
) -> Prompt:
    text = _text(row, data, "prompt", needed)
    if not text.strip():
        raise _error(row.place, f"column {data.columns.prompt!r} is blank", "drop the row")
    return Prompt(
        index=index,
        text=text,
        query=_text(row, data, "query", needed) if data.columns.query else text,
        answer=_answers(row, data, needed),
        context=_text(row, data, "context", needed),
        columns={name: _named(row, name, place) for name, place in named.items()},
    )


def _named(row: _Row, column: str, place: str) -> Any:
    """Return a column's value that the template at `place` names."""
    value = row.values.get(column)
    if value is None:
        state = "is null" if column in row.columns else "does not exist"
        known = ", ".join(sorted(row.columns))
        what = f"column {column!r} {state}, and {place} names {{{column}}}"
        raise _error(row.place, what, f"fill it in, or name another of: {known}")
    try:
        json.dumps(value)
    except TypeError as error:
        what = f"column {column!r} is {type(value).__name__}, and {place} names {{{column}}}"
        raise _error(row.place, what, "convert it to text, numbers or lists") from error
    return value


def _answers(row: _Row, data: DataSpec, needed: set[str]) -> tuple[str, ...]:
    value = _value(row, data, "answer", needed)
    answers = value if isinstance(value, list) else [value]
    if value is None:
        return ()
    if not answers or not all(isinstance(answer, str) for answer in answers):
        raise _wrong_type(row, data, "answer", value, "a string or a list of strings")
    return tuple(answers)


def _text(row: _Row, data: DataSpec, field: str, needed: set[str]) -> str:
    value = _value(row, data, field, needed)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _wrong_type(row, data, field, value, "a string")
    return value


def _value(row: _Row, data: DataSpec, field: str, needed: set[str]) -> object:
    """Return a column's value, or None if it is missing or null and not needed."""
    column = getattr(data.columns, field)
    value = row.values.get(column)
    if value is not None or field not in needed:
        return value
    if column in row.columns:
        raise _error(row.place, f"column {column!r} is null", "fill it in, or drop the row")
    known = ", ".join(sorted(row.columns))
    raise _error(
        row.place, f"there is no column {column!r}", f"set data.columns.{field} to one of: {known}"
    )


def _wrong_type(row: _Row, data: DataSpec, field: str, value: object, wanted: str) -> TrainerError:
    column, shown = getattr(data.columns, field), repr(value)[:60]
    what = f"column {column!r} is {type(value).__name__} {shown} instead of {wanted}"
    return _error(row.place, what, f"convert it, or set data.columns.{field} to another column")


def _error(place: str, what: str, remedy: str) -> TrainerError:
    return TrainerError(ExitCode.DATA_ERROR, f"{place}: {what}; {remedy}")


def _copy(source: Path, target: Path) -> None:
    wanted = source.stat()
    if target.exists():
        found = target.stat()
        if (found.st_size, found.st_mtime_ns) == (wanted.st_size, wanted.st_mtime_ns):
            return
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f"{target.name}.tmp")
    shutil.copy2(source, draft)
    copied = draft.stat().st_size
    if copied != wanted.st_size:
        raise OSError(f"{copied} of {wanted.st_size} bytes arrived")
    draft.replace(target)
