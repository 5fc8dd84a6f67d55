"""Checks DataReadable, DataColumns, SampleLengths: read all rows, tokenize the longest prompts."""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from raggrpo_api.spec.retrieval import RetrievalMode
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.preflight import CheckId
from raggrpo_trainer.data.columns import MISSING, leaf_paths, value_at
from raggrpo_trainer.data.prompt_files import Prompt, needed_fields, read_prompts
from raggrpo_trainer.data.prompts import Tokenizer, compose, render_prompt
from raggrpo_trainer.errors import TrainerError

from .finding import Finding, finding_for, not_evaluated

FIRST_ROWS = 100
"""Number of rows from which the columns and the median length are derived."""
MIN_MEASURED_ROWS = 100
MAX_MEASURED_ROWS = 10_000
"""Bounds of the number of rows to tokenize, longest first; 10,000 rows take about 10 s."""
UNLIMITED = 10**9
PROBE_QUESTION = "Which sea lies there?"
"""Question that the output of a chat template must contain."""


@dataclass(frozen=True, slots=True)
class DataCheck:
    """The findings, and the training prompts."""

    findings: tuple[Finding, ...]
    prompts: list[Prompt]
    """Prompts of the training files; empty if a file cannot be read."""


def check_data(config: TrainerConfig) -> DataCheck:
    """Check the needed columns, and read all rows that the trainer will read."""
    data = config.data
    missing = dict(_missing_columns(config))
    columns = finding_for(
        CheckId.DATA_COLUMNS,
        list(missing.values()),
        f"found columns {', '.join(_needed_columns(config).values())}",
        ExitCode.DATA_ERROR,
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
    return DataCheck((readable, columns), train)


def check_lengths(
    config: TrainerConfig, prompts: Sequence[Prompt], tokenizer: Tokenizer | None
) -> Finding:
    """Compare the lengths of the longest prompts, with full-length passages, to maxPromptLength."""
    if not prompts or tokenizer is None:
        return not_evaluated(CheckId.SAMPLE_LENGTHS, "requires readable data and the tokenizer")
    if problems := _template_problems(config, prompts, tokenizer):
        return finding_for(CheckId.SAMPLE_LENGTHS, problems, "", ExitCode.DATA_ERROR)
    reserved = _num_passages(config) * config.retrieval.max_passage_tokens
    limit = config.data.max_prompt_length
    longest = _longest(prompts, limit - reserved)
    try:
        first_lengths = [_length(prompt, config, tokenizer) for prompt in prompts[:FIRST_ROWS]]
        lengths = {prompt.index: _length(prompt, config, tokenizer) for prompt in longest}
    except TrainerError as error:  # the template rejects a single row
        return finding_for(CheckId.SAMPLE_LENGTHS, [str(error)], "", ExitCode.DATA_ERROR)
    row = max(lengths, key=lambda index: lengths[index])
    median = statistics.median(first_lengths)
    evidence = f"prompts have {median:.0f} tokens (median) and at most {lengths[row]} (row {row})"
    if reserved:
        evidence += f", passages add up to {reserved}"
    evidence += f"; maxPromptLength {limit}"
    if lengths[row] + reserved <= limit:
        return finding_for(CheckId.SAMPLE_LENGTHS, [], evidence)
    if config.data.allow_truncation:
        return finding_for(
            CheckId.SAMPLE_LENGTHS,
            [],
            f"{evidence}; longer prompts are truncated (data.allowTruncation)",
        )
    remedy = "increase data.maxPromptLength, or set data.allowTruncation: true"
    if reserved:
        remedy = f"decrease retrieval.maxPassageTokens or topK, {remedy}"
    return finding_for(CheckId.SAMPLE_LENGTHS, [f"{evidence}: {remedy}"], "", ExitCode.DATA_ERROR)


def _missing_columns(config: TrainerConfig) -> Iterator[tuple[str, str]]:
    """Yield (file, problem) for each readable file that lacks a needed column."""
    needed = _needed_columns(config)
    for file in [*config.data.train_files, *config.data.validation_files]:
        columns = _columns(Path(file))
        missing = {f: path for f, path in needed.items() if value_at(columns, path) is MISSING}
        if columns and missing:
            names = ", ".join(repr(path) for path in missing.values())
            fields = ", ".join(f"data.columns.{field}" for field in missing)
            available = ", ".join(leaf_paths(columns))
            yield file, f"{file} has no column {names}: set {fields} to one of {available}"


def _needed_columns(config: TrainerConfig) -> dict[str, str]:
    needed = needed_fields(config.data, config.retrieval, config.reward)
    return {field: getattr(config.data.columns, field) for field in sorted(needed)}


def _columns(path: Path) -> dict[str, object]:
    """Return the columns of a file, nested columns as mappings; {} if the file is unreadable."""
    try:
        if path.suffix == ".parquet":
            schema = pq.read_schema(path)
            return {name: _nested(schema.field(name).type) for name in schema.names}
        with path.open("rb") as lines:
            rows = [json.loads(line) for line in islice(lines, FIRST_ROWS) if line.strip()]
        columns: dict[str, object] = {}
        for row in rows:
            _merge(columns, dict(row))
        return dict(sorted(columns.items()))
    except (OSError, ValueError, TypeError, RecursionError, pa.ArrowException):
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


def _template_problems(
    config: TrainerConfig, prompts: Sequence[Prompt], tokenizer: Tokenizer
) -> list[str]:
    """Render the chat template for one prompt per sequence of roles; return the problems.

    Rendering all rows would take minutes for a large file.
    """
    kinds: dict[tuple[object, ...], Prompt] = {}
    for prompt in prompts:
        roles = tuple(message["role"] for message in prompt.earlier)
        kinds.setdefault((roles, bool(prompt.tools)), prompt)
    problems = []
    for prompt in kinds.values():
        try:
            text = render_prompt(prompt, PROBE_QUESTION, tokenizer, config.data.chat_template)
        except TrainerError as error:
            problems.append(str(error))
        else:
            if PROBE_QUESTION not in text:
                problems.append(
                    "the chat template omits the question: data.chatTemplate must be the text of a "
                    "template, not a file name, and must output the content of messages"
                )
    return problems


def _longest(prompts: Sequence[Prompt], limit: int) -> list[Prompt]:
    """Return the prompts that may have more than `limit` tokens, and some of the longest prompts.

    A token has at least one byte, so prompts with fewer bytes than the limit cannot exceed it. Half
    of the limit is reserved for templates.
    """
    by_size = sorted(((_bytes(prompt), prompt) for prompt in prompts), key=lambda each: -each[0])
    return [
        prompt
        for rank, (size, prompt) in enumerate(by_size[:MAX_MEASURED_ROWS])
        if rank < MIN_MEASURED_ROWS or size > limit / 2
    ]


def _bytes(prompt: Prompt) -> int:
    texts = [prompt.text, *(message["content"] for message in prompt.earlier)]
    return sum(len(text.encode()) for text in texts)


def _read(
    config: TrainerConfig, files: Sequence[str], missing: Mapping[str, str]
) -> tuple[list[Prompt], list[str]]:
    """Return the prompts of all files, or the problems of the files that cannot be read."""

    def read(names: Sequence[str]) -> tuple[list[Prompt], list[str]]:
        try:
            return read_prompts(names, config.data, config.retrieval, config.reward), []
        except TrainerError as error:
            return [], [str(error)]

    prompts, problems = read(files)
    if not problems:
        return prompts, []
    return [], [each for file in files if file not in missing for each in read([file])[1]]


def _length(prompt: Prompt, config: TrainerConfig, tokenizer: Tokenizer) -> int:
    """Return the number of tokens of a prompt in its templates, with empty passages."""
    composed = compose(
        prompt,
        [""] * _num_passages(config),
        config.retrieval,
        tokenizer,
        max_prompt_length=UNLIMITED,
        allow_truncation=False,
        seed=0,
        chat_template=config.data.chat_template,
    )
    return len(composed.token_ids)


def _num_passages(config: TrainerConfig) -> int:
    """Return the maximum number of passages in a prompt."""
    if config.retrieval.mode is not RetrievalMode.PROMPT:
        return 0
    return max((endpoint.top_k for endpoint in config.retrieval.endpoints), default=0)
