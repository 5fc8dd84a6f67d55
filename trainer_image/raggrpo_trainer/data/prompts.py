"""Compose and tokenize prompts ahead of the step that needs them.

    composer = Composer(config, tokenizer)
    source = PromptSource(config, prompts, composer)
    batch, cursor = await source.next_batch(cursor, size)
    composed = await composer.compose(prompt, passages, seed)

Prefetching does not move the cursor: a saved cursor covers only batches that were used.
"""

import asyncio
import bisect
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from raggrpo_api.spec.retrieval import RetrievalMode, RetrievalSpec
from raggrpo_api.trainer.config import TrainerConfig

from .conversation import InvalidValue, invalid_value_error, render
from .prompt_files import Prompt
from .sampler import Cursor, Sampler, permutation
from .tokenizer import MAX_TOKEN_CHARACTERS, Tokenizer, prompt_ids, token_ids

CHARACTERS_PER_TOKEN = 8
"""Characters of a text to tokenize first, per token of its limit."""


class PromptTooLong(Exception):
    """A prompt exceeds maxPromptLength and cannot or must not be truncated."""

    def __init__(
        self,
        prompt: Prompt,
        composed: "ComposedPrompt",
        limit: int,
        num_passages: int,
        *,
        allow_truncation: bool,
    ) -> None:
        remedy = "decrease retrieval.maxPassageTokens or topK, or set data.allowTruncation: true"
        if allow_truncation:
            remedy = "or shorten its template, system message, tools and earlier turns"
        tokens = _min_tokens(composed)
        size = str(tokens) if composed.token_ids else f"at least {tokens}"
        super().__init__(
            f"prompt {prompt.index} has {size} tokens with its {num_passages} passages "
            f"(data.maxPromptLength {limit}); increase data.maxPromptLength, {remedy}"
        )
        self.tokens = tokens
        """Number of tokens; the minimum number if the text is too long to be tokenized."""


@dataclass(frozen=True, slots=True)
class ComposedPrompt:
    """A prompt as the policy receives it, with the templates filled in."""

    token_ids: tuple[int, ...]
    """The tokens of `text`."""
    text: str
    passages: tuple[str, ...]
    """The passages as they appear in `text`: cut to length, in the order of the text."""
    truncated: bool
    """Whether passages or the end of the question were dropped."""


def compose(
    prompt: Prompt,
    passages: Sequence[str],
    spec: RetrievalSpec,
    tokenizer: Tokenizer,
    *,
    max_prompt_length: int,
    allow_truncation: bool,
    seed: int,
    chat_template: str = "",
) -> ComposedPrompt:
    """Fill the templates and return a prompt of at most `max_prompt_length` tokens.

    `passages` are ordered best first and used in mode Prompt only. With a chat template, the
    tokenizer's or `chat_template`, the text becomes the last user message. `allow_truncation`
    drops passages, the last one first, and then cuts the end of the question. A text of more than
    MAX_TOKEN_CHARACTERS per token is not tokenized: it exceeds the limit. Raises PromptTooLong if
    the prompt still exceeds the limit, and TrainerError DATA_ERROR if the template rejects the
    conversation.
    """
    cut_passages = [cut_to_tokens(text, spec.max_passage_tokens, tokenizer) for text in passages]

    max_characters = MAX_TOKEN_CHARACTERS * max_prompt_length

    def attempt(num_passages: int, question: str) -> ComposedPrompt:
        shown = cut_passages[:num_passages]
        if spec.shuffle_passages:
            shown = [shown[i] for i in permutation(num_passages, seed)]
        text = render_prompt(prompt, _filled(question, shown, spec), tokenizer, chat_template)
        is_short = len(text) <= max_characters
        ids = prompt_ids(text, tokenizer, chat_template) if is_short else ()
        truncated = num_passages < len(cut_passages) or question != prompt.text
        return ComposedPrompt(ids, text, tuple(shown), truncated)

    def fits(composed: ComposedPrompt) -> bool:
        return _min_tokens(composed) <= max_prompt_length

    whole = attempt(len(cut_passages), prompt.text)
    if fits(whole):
        return whole
    if allow_truncation:
        for number in reversed(range(len(cut_passages))):
            if fits(shorter := attempt(number, prompt.text)):
                return shorter
        length = _longest(
            len(prompt.text),
            lambda length: _min_tokens(attempt(0, prompt.text[:length])),
            max_prompt_length,
        )
        if length > 0:
            return attempt(0, prompt.text[:length])
    raise PromptTooLong(
        prompt,
        whole,
        max_prompt_length,
        len(cut_passages),
        allow_truncation=allow_truncation,
    )


def _min_tokens(composed: ComposedPrompt) -> int:
    """Return the number of tokens; the minimum number if the text was too long to be tokenized."""
    return len(composed.token_ids) or math.ceil(len(composed.text) / MAX_TOKEN_CHARACTERS)


def render_prompt(prompt: Prompt, text: str, tokenizer: Tokenizer, chat_template: str) -> str:
    """Return the conversation of a prompt with `text` as its last message.

    Raises TrainerError DATA_ERROR if the template rejects the conversation.
    """
    try:
        return render(text, prompt.earlier, prompt.tools, tokenizer, chat_template)
    except InvalidValue as error:
        raise invalid_value_error(f"prompt {prompt.index}", error) from error


def cut_to_tokens(text: str, limit: int, tokenizer: Tokenizer) -> str:
    """Return the longest prefix of `text` with at most `limit` tokens.

    A service may send a text of many megabytes: little more than the prefix is tokenized.
    """

    def count(end: int) -> int:
        return len(token_ids(text[:end], tokenizer))

    end = CHARACTERS_PER_TOKEN * (limit + 1)
    while count(end) <= limit:
        if end >= len(text):
            return text
        end *= 2
    return text[: _longest(min(end, len(text)), count, limit)]


class Composer:
    """Composes prompts in `data.numWorkers` threads, off the event loop."""

    def __init__(self, config: TrainerConfig, tokenizer: Tokenizer) -> None:
        self._config, self._tokenizer = config, tokenizer
        cpus = len(os.sched_getaffinity(0))
        self._threads = ThreadPoolExecutor(
            min(config.data.num_workers, cpus), thread_name_prefix="compose"
        )
        self._started: dict[int, tuple[Prompt, Future[ComposedPrompt]]] = {}
        """Prefetched prompts by index; a validation and a training prompt may share an index."""

    async def compose(self, prompt: Prompt, passages: Sequence[str], seed: int) -> ComposedPrompt:
        """Return the composed prompt; reuse the prefetched result if there is one."""
        started = self._started.get(prompt.index)  # only prompts without passages are prefetched
        if started is None or started[0] is not prompt:
            return await asyncio.wrap_future(self._submit(prompt, passages, seed))
        del self._started[prompt.index]
        return await asyncio.wrap_future(started[1])

    def prefetch(self, upcoming: Sequence[Prompt]) -> None:
        """Start composing `upcoming` unless prompts need passages; cancel all other prefetches."""
        if self._config.retrieval.mode is RetrievalMode.PROMPT:
            return
        previous = self._started
        self._started = {}
        for prompt in upcoming:
            started = previous.pop(prompt.index, None) or self._started.get(prompt.index)
            self._started[prompt.index] = started or (prompt, self._submit(prompt, (), 0))
        for _, future in previous.values():
            future.cancel()

    def close(self) -> None:
        """Cancel queued work and stop the threads."""
        self._threads.shutdown(cancel_futures=True)

    def _submit(
        self, prompt: Prompt, passages: Sequence[str], seed: int
    ) -> "Future[ComposedPrompt]":
        return self._threads.submit(
            compose,
            prompt,
            passages,
            self._config.retrieval,
            self._tokenizer,
            max_prompt_length=self._config.data.max_prompt_length,
            allow_truncation=self._config.data.allow_truncation,
            seed=seed,
            chat_template=self._config.data.chat_template,
        )


class PromptSource:
    """Returns the batch at a cursor and prefetches the batches after it. Stateless."""

    def __init__(
        self, config: TrainerConfig, prompts: Sequence[Prompt], composer: Composer | None = None
    ) -> None:
        """Without a composer, nothing is prefetched."""
        self._prompts, self._composer = prompts, composer
        self._sampler = Sampler(len(prompts), config.training.seed)
        self._prefetch_factor = config.data.prefetch_factor
        self._skipped_steps = frozenset(config.skipped_steps)

    def batch_start(self, step: int, cursor: Cursor, size: int) -> Cursor:
        """Return the cursor at the start of a step's batch; a skipped step uses the next batch."""
        return self._take(cursor, size)[1] if step in self._skipped_steps else cursor

    async def next_batch(self, cursor: Cursor, size: int) -> tuple[list[Prompt], Cursor]:
        """Return the `size` prompts after the cursor, and the cursor after these prompts."""
        batch, after = self._take(cursor, size)
        if self._composer is not None:
            ahead, _ = self._take(after, size * self._prefetch_factor)
            self._composer.prefetch([*batch, *ahead])
        return batch, after

    def _take(self, cursor: Cursor, size: int) -> tuple[list[Prompt], Cursor]:
        indices, after = self._sampler.next_batch(cursor, size)
        return [self._prompts[index] for index in indices], after


def _filled(question: str, passages: Sequence[str], spec: RetrievalSpec) -> str:
    if spec.mode is not RetrievalMode.PROMPT:
        return question
    texts = [
        spec.passage_template.format(index=index, text=text)
        for index, text in enumerate(passages, 1)
    ]
    return spec.prompt_template.format(passages="".join(texts), prompt=question)


def _longest(count: int, tokens: Callable[[int], int], limit: int) -> int:
    """Return the largest text length, up to `count`, with at most `limit` tokens; 0 if none.

    A search over the text works with any tokenizer; cutting token ids and decoding them can split
    characters and change the number of tokens.
    """
    return max(0, bisect.bisect_right(range(count + 1), limit, key=tokens) - 1)
