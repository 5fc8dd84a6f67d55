"""Checks DataReadable, DataColumns and SampleLengths: reads all rows, tokenises the longest."""

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
LONGEST_ROWS = 100
"""Measured in any case, for what is told."""
MAX_MEASURED_ROWS = 10_000
"""Measured at most, which takes some ten seconds; the longest come first."""
ANY_LENGTH = 10**9
PROBE_QUESTION = "Which sea lies there?"
"""Seen again in what a chat template makes of it."""


@dataclass(frozen=True, slots=True)
class Data:
    """The contents of the data files, and what the checks found."""

    findings: tuple[Finding, ...]
    prompts: list[Prompt]
    """Of the training files; empty if they cannot be read."""


def check_data(config: TrainerConfig) -> Data:
    """Read every row the trainer will read."""
    data = config.data
    missing = dict(_missing_columns(config))
    columns = finding_for(
        CheckId.DATA_COLUMNS,
        list(missing.values()),
        f"columns {', '.join(_wanted_columns(config).values())}",
        ExitCode.DATA_ERROR,
    )
    train, problems = _read(config, data.train_files, missing)
    validation, others = _read(config, data.validation_files, missing)
    if missing and not problems and not others:
        readable = not_evaluated(CheckId.DATA_READABLE, "needs the columns")
    else:
        readable = finding_for(
            CheckId.DATA_READABLE,
            [*problems, *others],
            f"{len(train):,} training rows, {len(validation):,} validation rows",
            ExitCode.DATA_ERROR,
        )
    return Data((readable, columns), train)


def check_lengths(
    config: TrainerConfig, prompts: Sequence[Prompt], tokenizer: Tokenizer | None
) -> Finding:
    """Compare the longest prompts, plus room for full-length passages, with maxPromptLength."""
    if not prompts or tokenizer is None:
        return not_evaluated(CheckId.SAMPLE_LENGTHS, "needs the data and the tokenizer")
    if refused := _refused(config, prompts, tokenizer):
        return finding_for(CheckId.SAMPLE_LENGTHS, refused, "", ExitCode.DATA_ERROR)
    reserved = _num_passages(config) * config.retrieval.max_passage_tokens
    limit = config.data.max_prompt_length
    longest = _longest(prompts, limit - reserved)
    try:
        first = [_length(prompt, config, tokenizer) for prompt in prompts[:FIRST_ROWS]]
        long = {prompt.index: _length(prompt, config, tokenizer) for prompt in longest}
    except TrainerError as error:  # a template that refuses one row alone
        return finding_for(CheckId.SAMPLE_LENGTHS, [str(error)], "", ExitCode.DATA_ERROR)
    row = max(long, key=lambda index: long[index])
    evidence = (
        f"prompts have {statistics.median(first):.0f} tokens (median), at most {long[row]} "
        f"(row {row})"
    )
    if reserved:
        evidence += f", passages up to {reserved}"
    evidence += f"; maxPromptLength {limit}"
    if long[row] + reserved <= limit:
        return finding_for(CheckId.SAMPLE_LENGTHS, [], evidence)
    if config.data.allow_truncation:
        return finding_for(CheckId.SAMPLE_LENGTHS, [], f"{evidence}; truncated as allowed")
    remedy = "raise data.maxPromptLength, or set data.allowTruncation: true"
    if reserved:
        remedy = f"lower retrieval.maxPassageTokens or topK, {remedy}"
    return finding_for(CheckId.SAMPLE_LENGTHS, [f"{evidence}: {remedy}"], "", ExitCode.DATA_ERROR)


def _missing_columns(config: TrainerConfig) -> Iterator[tuple[str, str]]:
    """Yield (file, problem) for readable files that lack a needed column."""
    wanted = _wanted_columns(config)
    for file in [*config.data.train_files, *config.data.validation_files]:
        known = _columns(Path(file))
        lacking = {f: column for f, column in wanted.items() if value_at(known, column) is MISSING}
        if known and lacking:
            names = ", ".join(repr(column) for column in lacking.values())
            fields = ", ".join(f"data.columns.{field}" for field in lacking)
            there = ", ".join(leaf_paths(known))
            yield file, f"{file} has no column {names}: set {fields} to one of {there}"


def _wanted_columns(config: TrainerConfig) -> dict[str, str]:
    needed = needed_fields(config.data, config.retrieval, config.reward)
    return {field: getattr(config.data.columns, field) for field in sorted(needed)}


def _columns(path: Path) -> dict[str, object]:
    """Return a file's columns, nested ones as mappings; none if it is unreadable."""
    try:
        if path.suffix == ".parquet":
            schema = pq.read_schema(path)
            return {name: _nested(schema.field(name).type) for name in schema.names}
        with path.open("rb") as lines:
            rows = [json.loads(line) for line in islice(lines, FIRST_ROWS) if line.strip()]
        found: dict[str, object] = {}
        for row in rows:
            _merge(found, dict(row))
        return dict(sorted(found.items()))
    except (OSError, ValueError, TypeError, RecursionError, pa.ArrowException):
        return {}


def _nested(kind: pa.DataType) -> object:
    if not pa.types.is_struct(kind):
        return None
    return {kind.field(i).name: _nested(kind.field(i).type) for i in range(kind.num_fields)}


def _merge(found: dict[str, object], row: Mapping[str, object]) -> None:
    for name, value in row.items():
        known = found.setdefault(name, {} if isinstance(value, dict) else None)
        if isinstance(value, dict) and isinstance(known, dict):
            _merge(known, value)


def _refused(config: TrainerConfig, prompts: Sequence[Prompt], tokenizer: Tokenizer) -> list[str]:
    """Return why conversations have no text; a template judges by roles, so one of each is tried.

    Rendering every row would take minutes for a large file.
    """
    kinds: dict[tuple[object, ...], Prompt] = {}
    for prompt in prompts:
        roles = tuple(message["role"] for message in prompt.earlier)
        kinds.setdefault((roles, bool(prompt.tools)), prompt)
    problems = []
    for prompt in kinds.values():
        try:
            shown = render_prompt(prompt, PROBE_QUESTION, tokenizer, config.data.chat_template)
        except TrainerError as error:
            problems.append(str(error))
        else:
            if PROBE_QUESTION not in shown:
                problems.append(
                    "the chat template leaves the question out: data.chatTemplate is a template's "
                    "text, not the name of its file, and shows the content of messages"
                )
    return problems


def _longest(prompts: Sequence[Prompt], limit: int) -> list[Prompt]:
    """Return the prompts that may be longer than so many tokens, and a few of the longest.

    A token is at least one byte, so what has fewer bytes fits; half of the limit is left to
    templates.
    """
    by_size = sorted(((_bytes(prompt), prompt) for prompt in prompts), key=lambda each: -each[0])
    return [
        prompt
        for place, (size, prompt) in enumerate(by_size[:MAX_MEASURED_ROWS])
        if place < LONGEST_ROWS or size > limit / 2
    ]


def _bytes(prompt: Prompt) -> int:
    texts = [prompt.text, *(message["content"] for message in prompt.earlier)]
    return sum(len(text.encode()) for text in texts)


def _read(
    config: TrainerConfig, files: Sequence[str], missing: Mapping[str, str]
) -> tuple[list[Prompt], list[str]]:
    """Return the prompts of all files, or the first problem of each file."""

    def read(chosen: Sequence[str]) -> tuple[list[Prompt], list[str]]:
        try:
            return read_prompts(chosen, config.data, config.retrieval, config.reward), []
        except TrainerError as error:
            return [], [str(error)]

    prompts, problems = read(files)
    if not problems:
        return prompts, []
    each = [read([file])[1] for file in files if file not in missing]
    return [], [problem for found in each for problem in found]


def _length(prompt: Prompt, config: TrainerConfig, tokenizer: Tokenizer) -> int:
    """Return the token count of a prompt in its templates, with empty passages."""
    composed = compose(
        prompt,
        [""] * _num_passages(config),
        config.retrieval,
        tokenizer,
        max_prompt_length=ANY_LENGTH,
        allow_truncation=False,
        seed=0,
        chat_template=config.data.chat_template,
    )
    return len(composed.token_ids)


def _num_passages(config: TrainerConfig) -> int:
    """Return how many passages are added to a prompt before generation."""
    if config.retrieval.mode is not RetrievalMode.PROMPT:
        return 0
    return max((endpoint.top_k for endpoint in config.retrieval.endpoints), default=0)
