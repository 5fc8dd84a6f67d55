"""Checks DataReadable and DataColumns: read all rows that the trainer will read."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from raggrpo_api.data_files import DataFormat, data_format
from raggrpo_api.foreign_files import require_own_file
from raggrpo_api.parquet_footer import parquet_metadata
from raggrpo_api.spec.placeholders import column_placeholders
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.preflight import CheckId
from raggrpo_trainer.data.columns import MISSING, leaf_paths, value_at
from raggrpo_trainer.data.prompt_files import Prompt, needed_fields, read_prompts
from raggrpo_trainer.data.rows import read_rows
from raggrpo_trainer.data.shown_value import shown_paths
from raggrpo_trainer.errors import TrainerError

from .finding import Finding, finding_for, not_evaluated

FIRST_ROWS = 100
"""Number of rows from which columns and the median length are derived."""
MAX_COLUMNS = 100_000
"""Number of columns after which no more rows are read for their columns."""
COMPANIONS = {
    "input": ("instruction",),
    "instruction": ("input", "system", "history"),
    "question": ("choices", "options"),
}
"""Columns that belong to a prompt column in Alpaca's format and in multiple-choice data sets."""


@dataclass(frozen=True, slots=True)
class DataCheck:
    """Findings of the data checks, and the prompts that they read."""

    findings: tuple[Finding, ...]
    train: list[Prompt]
    """Prompts of the training files; empty if a file cannot be read."""
    validation: list[Prompt]
    """Prompts of the validation files; empty if there are none or a file cannot be read."""


def check_data(config: TrainerConfig) -> DataCheck:
    """Check the needed columns, and read all rows that the trainer will read."""
    data = config.data
    missing = dict(_missing_columns(config))
    unused = list(_unused_columns(config))
    columns = finding_for(
        CheckId.DATA_COLUMNS,
        list(missing.values()),
        "; ".join([*unused, f"found columns {', '.join(_needed_columns(config).values())}"]),
        ExitCode.DATA_ERROR,
        is_unusual=bool(unused),
    )
    train, train_problems = _read(config, data.train_files, missing)
    validation, validation_problems = _read(config, data.validation_files, missing)
    problems = [*train_problems, *validation_problems]
    if missing and not problems:
        readable = not_evaluated(CheckId.DATA_READABLE, "requires that check DataColumns passes")
    else:
        readable = finding_for(
            CheckId.DATA_READABLE,
            problems,
            f"read {len(train):,} training rows and {len(validation):,} validation rows",
            ExitCode.DATA_ERROR,
        )
    return DataCheck((readable, columns), train, validation)


def _missing_columns(config: TrainerConfig) -> Iterator[tuple[str, str]]:
    """Yield (file, problem) for each readable file that lacks a needed column."""
    needed = _needed_columns(config)
    for file in [*config.data.train_files, *config.data.validation_files]:
        columns = _columns(Path(file))
        missing = {f: path for f, path in needed.items() if value_at(columns, path) is MISSING}
        if columns and missing:
            names = ", ".join(repr(path) for path in missing.values())
            fields = ", ".join(f"data.columns.{field}" for field in missing)
            available = shown_paths(leaf_paths(columns))
            yield file, f"{file} has no column {names}: set {fields} to one of {available}"


def _unused_columns(config: TrainerConfig) -> Iterator[str]:
    """Yield a warning for each column that belongs to the prompt but is not used."""
    prompt = config.data.columns.prompt
    used = {*config.data.columns.model_dump().values()}
    used |= set(column_placeholders(config.retrieval, config.reward, config.rollout.agent))
    for name in COMPANIONS.get(prompt, ()):
        if name not in used and (place := _first_value(config.data.train_files, name)):
            yield (
                f"{place}: column {name!r} is not used, only {prompt!r}: if it belongs to the "
                "prompt, write both into one column"
            )


def _first_value(files: Sequence[str], column: str) -> str:
    """Return the place of the first value of a column in the first rows, or "" if it is blank."""
    rows = (row for file in files for row in islice(read_rows(Path(file), [column]), FIRST_ROWS))
    try:
        return next((row.place for row in rows if not _is_blank(row.values.get(column))), "")
    except TrainerError:  # reported by DataReadable
        return ""


def _is_blank(value: object) -> bool:
    return not (value.strip() if isinstance(value, str) else value)


def _needed_columns(config: TrainerConfig) -> dict[str, str]:
    needed = needed_fields(config.data, config.retrieval, config.reward, config.rollout.agent)
    return {field: getattr(config.data.columns, field) for field in sorted(needed)}


def _columns(path: Path) -> dict[str, object]:
    """Return the columns of a file, nested columns as mappings; {} if the file is unreadable."""
    try:
        require_own_file(path)
        if data_format(path) is DataFormat.PARQUET:
            schema = parquet_metadata(path, pq.read_metadata).schema.to_arrow_schema()
            return {field.name: _nested(field.type) for field in schema}
        columns: dict[str, object] = {}
        for row in islice(read_rows(path, None), FIRST_ROWS):
            _merge(columns, row.values)
            if len(columns) > MAX_COLUMNS:
                break
        return dict(sorted(columns.items()))
    except (OSError, UnicodeDecodeError, TrainerError, pa.ArrowException):
        return {}


def _nested(kind: pa.DataType) -> object:
    if not pa.types.is_struct(kind):
        return None
    return {kind.field(i).name: _nested(kind.field(i).type) for i in range(kind.num_fields)}


def _merge(columns: dict[str, object], row: Mapping[str, object]) -> None:
    for name, value in row.items():
        known = columns.setdefault(name, {} if isinstance(value, dict) else None)
        if isinstance(value, dict) and isinstance(known, dict):
            _merge(known, value)


def _read(
    config: TrainerConfig, files: Sequence[str], missing: Mapping[str, str]
) -> tuple[list[Prompt], list[str]]:
    """Return the prompts of all files, or the problems of the files that cannot be read."""

    def read(names: Sequence[str]) -> tuple[list[Prompt], list[str]]:
        try:
            return read_prompts(
                names, config.data, config.retrieval, config.reward, config.rollout.agent
            ), []
        except TrainerError as error:
            return [], [str(error)]

    prompts, problems = read(files)
    if not problems:
        return prompts, []
    return [], [each for file in files if file not in missing for each in read([file])[1]]
