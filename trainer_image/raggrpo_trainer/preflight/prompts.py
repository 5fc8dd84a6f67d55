"""Check SampleLengths: render one prompt of each kind, and tokenize the longest prompts."""

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from raggrpo_api.spec.retrieval import RetrievalMode
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.preflight import CheckId
from raggrpo_trainer.data.prompt_files import Prompt
from raggrpo_trainer.data.prompts import PromptTooLong, compose, render_prompt
from raggrpo_trainer.data.tokenizer import Tokenizer
from raggrpo_trainer.errors import TrainerError

from .data import FIRST_ROWS
from .finding import Finding, finding_for, not_evaluated
from .limited_tokenizer import LimitedTokenizer

MIN_MEASURED_ROWS = 100
MAX_MEASURED_ROWS = 10_000
"""Bounds of the number of rows to tokenize, longest first; 10,000 rows take about 10 s."""
MAX_LISTED_ROWS = 3
PROBE_QUESTION = "Which sea lies there?"
"""Question that the output of a chat template must contain."""
MAX_RENDERED_CHARACTERS = 160
"""Maximum characters of a rendered prompt that are shown."""


@dataclass(frozen=True, slots=True)
class DataSet:
    """The training or validation prompts, and how messages name one of them."""

    row_name: str
    prompts: Sequence[Prompt]

    def place(self, prompt: Prompt) -> str:
        """Return the place of a prompt, for messages."""
        return f"{self.row_name} {prompt.index}"


def check_lengths(
    config: TrainerConfig,
    train: Sequence[Prompt],
    validation: Sequence[Prompt],
    tokenizer: Tokenizer | None,
) -> Finding:
    """Compare the lengths of the longest prompts, with full-length passages, to maxPromptLength."""
    if not train or tokenizer is None:
        return not_evaluated(CheckId.SAMPLE_LENGTHS, "requires readable data and the tokenizer")
    tokenizer = cast(Tokenizer, LimitedTokenizer(tokenizer))
    sets = (DataSet("row", train), DataSet("validation row", validation))
    kinds = {place: prompt for each in sets for place, prompt in _kinds(each)}
    if problems := list(_template_problems(config, kinds.values(), tokenizer)):
        return _failed(problems)
    try:
        warnings = list(_omissions(config, kinds, tokenizer))
        first_lengths = [_length(prompt, config, tokenizer) for prompt in train[:FIRST_ROWS]]
        longest = {place: prompt for each in sets for place, prompt in _longest(config, each)}
        lengths = {place: _length(prompt, config, tokenizer) for place, prompt in longest.items()}
    except TrainerError as error:  # the template rejects a single row
        return _failed([str(error)])
    largest = max(lengths, key=lambda place: lengths[place])
    evidence = (
        f"prompts have {statistics.median(first_lengths):.0f} tokens (median) and at most "
        f"{lengths[largest]} ({largest})"
    )
    reserved, limit = _reserved(config), config.data.max_prompt_length
    if reserved:
        evidence += f", passages add up to {reserved}"
    evidence += f"; maxPromptLength {limit}"
    too_long = {
        place: longest[place] for place, length in lengths.items() if length + reserved > limit
    }
    if too_long and not config.data.allow_truncation:
        remedy = "increase data.maxPromptLength, or set data.allowTruncation: true"
        if reserved:
            remedy = f"decrease retrieval.maxPassageTokens or topK, {remedy}"
        return _failed([f"{evidence}: {remedy}"])
    if fixed := _lengths_without_question(config, too_long, tokenizer):
        return _failed(_truncation_problems(fixed, limit))
    if too_long:
        evidence += "; longer prompts are truncated (data.allowTruncation)"
    text = "; ".join([*warnings, evidence])
    return finding_for(CheckId.SAMPLE_LENGTHS, [], text, is_unusual=bool(warnings))


def _failed(problems: Sequence[str]) -> Finding:
    return finding_for(CheckId.SAMPLE_LENGTHS, problems, "", ExitCode.DATA_ERROR)


def _kinds(data: DataSet) -> Iterator[tuple[str, Prompt]]:
    """Yield one prompt per sequence of roles; rendering all rows would take minutes."""
    kinds: dict[tuple[object, ...], Prompt] = {}
    for prompt in data.prompts:
        roles = tuple(message["role"] for message in prompt.earlier)
        kinds.setdefault((roles, bool(prompt.tools)), prompt)
    for prompt in kinds.values():
        yield data.place(prompt), prompt


def _template_problems(
    config: TrainerConfig, prompts: Iterable[Prompt], tokenizer: Tokenizer
) -> Iterator[str]:
    for prompt in prompts:
        try:
            text = render_prompt(prompt, PROBE_QUESTION, tokenizer, config.data.chat_template)
        except TrainerError as error:
            yield str(error)
        else:
            if PROBE_QUESTION not in text:
                yield (
                    "the chat template omits the question: data.chatTemplate must be the text of a "
                    "template, not a file name, and must output the content of messages"
                )


def _omissions(
    config: TrainerConfig, kinds: Mapping[str, Prompt], tokenizer: Tokenizer
) -> Iterator[str]:
    """Yield a warning for the first prompt with messages or tools that its template omits."""
    for place, prompt in kinds.items():
        if omitted := _omitted(prompt, config, tokenizer):
            rendered = render_prompt(prompt, prompt.text, tokenizer, config.data.chat_template)
            yield (
                f"the chat template omits {', '.join(omitted)}: {place} is rendered as "
                f"{rendered[:MAX_RENDERED_CHARACTERS]!r}; change data.chatTemplate, or the data"
            )
            return


def _omitted(prompt: Prompt, config: TrainerConfig, tokenizer: Tokenizer) -> list[str]:
    """Return what the template omits. Short probes replace the contents, which it may change."""
    template = config.data.chat_template
    probes = [f"Probe {number}." for number, _ in enumerate(prompt.earlier)]
    earlier = tuple(
        {**message, "content": probe if message["content"].strip() else message["content"]}
        for message, probe in zip(prompt.earlier, probes, strict=True)
    )
    probed = replace(prompt, earlier=earlier)
    text = render_prompt(probed, PROBE_QUESTION, tokenizer, template)
    omitted = {
        f"messages with role {message['role']}"
        for message, probe in zip(earlier, probes, strict=True)
        if message["content"] == probe and probe not in text
    }
    if prompt.tools:
        without = render_prompt(replace(probed, tools=()), PROBE_QUESTION, tokenizer, template)
        if text == without:
            omitted.add("the tools")
    return sorted(omitted)


def _longest(config: TrainerConfig, data: DataSet) -> Iterator[tuple[str, Prompt]]:
    """Yield the prompts that may be too long, and some of the longest prompts.

    A token has at least one byte, so prompts with fewer bytes than the limit cannot exceed it. Half
    of the limit is reserved for templates.
    """
    limit = config.data.max_prompt_length - _reserved(config)
    by_size = sorted(((_bytes(prompt), prompt) for prompt in data.prompts), key=lambda p: -p[0])
    for rank, (size, prompt) in enumerate(by_size[:MAX_MEASURED_ROWS]):
        if rank < MIN_MEASURED_ROWS or size > limit / 2:
            yield data.place(prompt), prompt


def _bytes(prompt: Prompt) -> int:
    """Return the size of what a template may output: texts, tools and other message fields."""
    texts = [prompt.text, *(message["content"] for message in prompt.earlier)]
    fields = [{**message, "content": ""} for message in prompt.earlier]
    others = json.dumps([*prompt.tools, *fields], default=str) if prompt.tools or fields else ""
    return sum(len(text.encode()) for text in [*texts, others])


def _lengths_without_question(
    config: TrainerConfig, too_long: Mapping[str, Prompt], tokenizer: Tokenizer
) -> dict[str, int]:
    """Return the lengths of prompts that exceed the limit even if their question is cut."""
    lengths = {
        place: _length(replace(prompt, text=prompt.text[:1]), config, tokenizer, num_passages=0)
        for place, prompt in too_long.items()
    }
    return {each: size for each, size in lengths.items() if size > config.data.max_prompt_length}


def _truncation_problems(lengths: Mapping[str, int], limit: int) -> list[str]:
    problems = [
        f"{place} has {length} tokens in its template, system message, tools and earlier turns, "
        "so that it cannot be truncated"
        for place, length in list(lengths.items())[:MAX_LISTED_ROWS]
    ]
    if remaining := len(lengths) - len(problems):
        problems.append(f"{remaining} more rows are too long")
    return [*problems, f"increase data.maxPromptLength ({limit}), or shorten these rows"]


def _length(
    prompt: Prompt, config: TrainerConfig, tokenizer: Tokenizer, num_passages: int | None = None
) -> int:
    """Return the number of tokens of a prompt in its templates, with empty passages.

    If its text is too long to be tokenized, this is the minimum number.
    """
    try:
        composed = compose(
            prompt,
            [""] * (_num_passages(config) if num_passages is None else num_passages),
            config.retrieval,
            tokenizer,
            max_prompt_length=config.data.max_prompt_length,
            allow_truncation=False,
            seed=0,
            chat_template=config.data.chat_template,
        )
    except PromptTooLong as error:
        return error.tokens
    return len(composed.token_ids)


def _reserved(config: TrainerConfig) -> int:
    """Return the number of tokens reserved for passages."""
    return _num_passages(config) * config.retrieval.max_passage_tokens


def _num_passages(config: TrainerConfig) -> int:
    """Return the maximum number of passages in a prompt."""
    if config.retrieval.mode is not RetrievalMode.PROMPT:
        return 0
    return max((endpoint.top_k for endpoint in config.retrieval.endpoints), default=0)
