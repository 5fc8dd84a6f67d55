"""Read prompts from the data files of a job; errors name file, row and column."""

import dataclasses
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from raggrpo_api.foreign_files import require_own_file
from raggrpo_api.spec.agent import AgentSpec
from raggrpo_api.spec.data import DataSpec
from raggrpo_api.spec.placeholders import column_placeholders, needs_context
from raggrpo_api.spec.retrieval import RetrievalMode, RetrievalSpec
from raggrpo_api.spec.reward import ANSWER_REWARDS, RewardSpec, passes_all_columns
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.errors import TrainerError

from .columns import MISSING, leaf_paths, value_at
from .conversation import (
    InvalidValue,
    Message,
    invalid_value_error,
    is_conversation,
    last_content,
    parse_messages,
    read_conversation,
    read_tools,
)
from .media import MEDIA_REMEDY, placeholder
from .rows import Row, data_error, read_rows
from .shown_value import MAX_PATHS, short_repr, shown_paths

MAX_SHOWN_ROWS = 3
"""Number of invalid rows whose error is shown; further invalid rows are only counted."""
MAX_INVALID_ROWS = 100
"""Number of invalid rows after which reading stops, because so many indicate a wrong column."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One row of the data."""

    index: int
    """Row number across all files, from 0; part of the key of random seeds."""
    text: str
    """The question: the user's last message."""
    query: str
    """The search query; `text` unless a query column is set."""
    answer: tuple[str, ...]
    """Accepted answers; empty if the row has none and no reward needs one."""
    context: str
    """Dialogue context; empty if the row has none and no endpoint needs one."""
    earlier: tuple[Message, ...] = ()
    """Messages before the question: system prompt and earlier turns."""
    tools: tuple[Any, ...] = ()
    """Function schemas for the chat template."""
    columns: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Values of the columns that request templates name, or of all columns with JSON values."""


def read_prompts(
    files: Sequence[str],
    data: DataSpec,
    retrieval: RetrievalSpec,
    reward: RewardSpec | None = None,
    agent: AgentSpec | None = None,
) -> list[Prompt]:
    """Return the first `data.maxSamples` rows (0: all) of `.parquet` and `.jsonl` files, in order.

    Answer and context columns are required only if a reward or an endpoint needs them.
    Raises TrainerError DATA_ERROR with file, row, column and remedy for each invalid row.
    """
    needed = needed_fields(data, retrieval, reward, agent)
    template_columns = column_placeholders(retrieval, reward, agent)
    passes_columns = reward is not None and passes_all_columns(reward)
    paths = None if passes_columns else {*data.columns.model_dump().values(), *template_columns}
    rows = (row for file in files for row in read_rows(Path(file), paths))
    limited = islice(rows, data.max_samples or None)
    prompts = _valid_prompts(limited, data, needed, template_columns, all_columns=passes_columns)
    if files and not prompts:
        raise data_error(", ".join(files), "no rows", "add one row per prompt")
    return prompts


def needed_fields(
    data: DataSpec,
    retrieval: RetrievalSpec,
    reward: RewardSpec | None = None,
    agent: AgentSpec | None = None,
) -> set[str]:
    """Return the fields of `data.columns` for which each row must have a value."""
    needed = {"prompt"}
    if data.columns.query:
        needed.add("query")
    if retrieval.mode is RetrievalMode.REWARD or needs_context(retrieval, reward, agent):
        needed.add("context")
    is_scored_by_agent = agent is not None and bool(agent.reward)
    functions = reward.functions if reward and not is_scored_by_agent else []
    if any(term.name in ANSWER_REWARDS for term in functions):
        needed.add("answer")
    return needed


def stage_files(files: Sequence[str], folder: Path) -> list[str]:
    """Copy files to a folder on a fast disk and return their new paths.

    A copy with the same size and mtime is reused. Raises TrainerError DATA_ERROR.
    """
    staged = []
    for number, file in enumerate(files):
        source = Path(file)
        target = folder / f"{number}-{source.name}"
        try:
            require_own_file(source)
            _copy(source, target)
        except OSError as error:
            raise data_error(
                file,
                f"cannot be copied to {target} ({error})",
                "free up space on that disk, or set data.stageToLocalDisk: false",
            ) from error
        staged.append(str(target))
    return staged


def _valid_prompts(
    rows: Iterable[Row],
    data: DataSpec,
    needed: set[str],
    template_columns: Mapping[str, str],
    *,
    all_columns: bool,
) -> list[Prompt]:
    """Return the prompts of all rows. Raises TrainerError with the first invalid rows.

    `template_columns` maps the columns that request templates name to the fields of the templates.
    With `all_columns`, prompts have the values of all columns.
    """
    prompts: list[Prompt] = []
    problems: list[str] = []
    default_tools = _default_tools(data)
    for index, row in enumerate(rows):
        try:
            prompt = _prompt(index, row, data, needed, default_tools)
            columns = _json_columns(row) if all_columns else {}
            columns |= {
                name: _template_value(row, name, place) for name, place in template_columns.items()
            }
            prompts.append(dataclasses.replace(prompt, columns=columns))
        except TrainerError as error:
            problems.append(str(error))
            if len(problems) == MAX_INVALID_ROWS:
                break
    if problems:
        shown = problems[:MAX_SHOWN_ROWS]
        remaining = len(problems) - len(shown)
        if len(problems) == MAX_INVALID_ROWS:
            shown.append("many more rows are invalid")
        elif remaining:
            shown.append(f"{remaining} more rows are invalid")
        raise TrainerError(ExitCode.DATA_ERROR, "; ".join(shown))
    return prompts


def _prompt(
    index: int, row: Row, data: DataSpec, needed: set[str], default_tools: tuple[Any, ...]
) -> Prompt:
    column = data.columns.prompt
    remedy = "convert the column, or set data.columns.prompt to another column"
    try:
        conversation = read_conversation(_value(row, data, "prompt", needed))
    except InvalidValue as error:
        raise invalid_value_error(f"{row.place}: column {column!r}", error, remedy) from error
    text, earlier = conversation.question, conversation.earlier
    if not text.strip():
        raise data_error(row.place, f"column {column!r} is blank", "drop the row")
    for content in (text, *(message["content"] for message in earlier)):
        if name := placeholder(content, row.columns):
            problem = f"column {column!r} has {name}, but image data is not supported"
            raise data_error(row.place, problem, MEDIA_REMEDY)
    if data.system_prompt:
        system = {"role": "system", "content": data.system_prompt}
        earlier = (system, *(each for each in earlier if each["role"] != "system"))
    return Prompt(
        index=index,
        text=text,
        query=_text(row, data, "query", needed) if data.columns.query else text,
        answer=_answers(row, data, needed),
        context=_text(row, data, "context", needed),
        earlier=earlier,
        tools=_tools(row, data) or default_tools,
    )


def _default_tools(data: DataSpec) -> tuple[Any, ...]:
    try:
        return read_tools(data.tools)
    except InvalidValue as error:
        raise invalid_value_error("data.tools", error) from error


def _tools(row: Row, data: DataSpec) -> tuple[Any, ...]:
    value = _value(row, data, "tools", set()) if data.columns.tools else None
    if value is None:
        return ()
    try:
        return read_tools(value)
    except InvalidValue as error:
        raise invalid_value_error(f"{row.place}: column {data.columns.tools!r}", error) from error


def _json_columns(row: Row) -> dict[str, Any]:
    """Return the columns of a row, except values that JSON cannot represent, such as images."""
    return {name: value for name, value in row.values.items() if _is_json(value)}


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, ensure_ascii=False)  # escapes would need more memory
    except (TypeError, ValueError):
        return False
    return True


def _template_value(row: Row, path: str, place: str) -> Any:
    """Return the value of a column that the template in the field `place` names."""
    value = value_at(row.values, path)
    if value is None or value is MISSING:
        state = "is null" if value is None else "does not exist"
        problem = f"column {path!r} {state}, but {place} contains the placeholder {{{path}}}"
        remedy = f"fill in the column, or use one of: {_available_columns(row)}"
        raise data_error(row.place, problem, remedy)
    if not _is_json(value):
        problem = (
            f"column {path!r} has type {type(value).__name__}, but {place} contains {{{path}}}"
        )
        raise data_error(row.place, problem, "convert the column to text, numbers or lists")
    return value


def _answers(row: Row, data: DataSpec, needed: set[str]) -> tuple[str, ...]:
    value = _value(row, data, "answer", needed)
    if value is None:
        return ()
    try:
        if isinstance(value, str):
            value = parse_messages(value)
        if isinstance(value, list) and is_conversation(value):
            return (last_content(value),)
    except InvalidValue as error:
        raise invalid_value_error(f"{row.place}: column {data.columns.answer!r}", error) from error
    values: list[object] = value if isinstance(value, list) else [value]
    answers = [answer for answer in values if isinstance(answer, str)]
    if not answers or len(answers) < len(values):
        raise _wrong_type(row, data, "answer", value, "a string or a list of strings")
    if "answer" in needed and not any(answer.strip() for answer in answers):
        problem = f"column {data.columns.answer!r} is blank"
        raise data_error(row.place, problem, "fill in the column, or drop the row")
    return tuple(answers)


def _text(row: Row, data: DataSpec, field: str, needed: set[str]) -> str:
    value = _value(row, data, field, needed)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _wrong_type(row, data, field, value, "a string")
    return value


def _value(row: Row, data: DataSpec, field: str, needed: set[str]) -> object:
    """Return the value of a column, or None if an unneeded column is missing or null."""
    column = getattr(data.columns, field)
    value = value_at(row.values, column)
    if value is MISSING and field not in needed:
        return None
    if value is not MISSING and (value is not None or field not in needed):
        return value
    if value is None:
        raise data_error(
            row.place, f"column {column!r} is null", "fill in the column, or drop the row"
        )
    remedy = f"set data.columns.{field} to one of: {_available_columns(row)}"
    raise data_error(row.place, _missing_column(row, column), remedy)


def _missing_column(row: Row, path: str) -> str:
    """Return the problem of a row that has no value at a path."""
    name = path.partition(".")[0]
    value = row.values.get(name)
    if name == path or value is None or isinstance(value, Mapping):
        return f"there is no column {path!r}"
    shown = f"{type(value).__name__} {short_repr(value, 60)}"
    return f"there is no column {path!r}: column {name!r} is {shown}"


def _available_columns(row: Row) -> str:
    paths = (leaf for name in row.columns for leaf in leaf_paths(row.values.get(name), name))
    return shown_paths(sorted(islice(paths, MAX_PATHS)))


def _wrong_type(row: Row, data: DataSpec, field: str, value: object, expected: str) -> TrainerError:
    column = getattr(data.columns, field)
    shown = short_repr(value, 60)
    problem = f"column {column!r} is {type(value).__name__} {shown} instead of {expected}"
    others = shown_paths(leaf_paths(value, column)) if isinstance(value, Mapping) and value else ""
    remedy = f"set data.columns.{field} to {others or 'another column'}"
    return data_error(row.place, problem, remedy if others else f"convert it, or {remedy}")


def _copy(source: Path, target: Path) -> None:
    original = source.stat()
    if target.exists():
        copy = target.stat()
        if (copy.st_size, copy.st_mtime_ns) == (original.st_size, original.st_mtime_ns):
            return
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f"{target.name}.tmp")
    shutil.copy2(source, draft)
    copied = draft.stat().st_size
    if copied != original.st_size:
        raise OSError(f"copied {copied} of {original.st_size} bytes")
    draft.replace(target)
