"""A byte tokenizer and a fake engine pool with scripted completions."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from raggrpo_trainer.engines.generation import Generation, GenerationRequest

Write = Callable[[str], str]


def make_byte_tokenizer() -> Any:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    table = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    table.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    table.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=table)


TOKENIZER = make_byte_tokenizer()


def tokens_of(text: str) -> list[int]:
    tokens: list[int] = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    return tokens


def text_of(tokens: Sequence[int]) -> str:
    text: str = TOKENIZER.decode(list(tokens))
    return text


@dataclass
class FakeEnginePool:
    """Fake engine pool that returns scripted texts, truncated to the request's limits."""

    write: Write
    """Returns the next text for the text so far."""
    requests: list[GenerationRequest] = field(default_factory=list)
    carried: str = ""
    """Additional text in the token that completes a stop text."""

    def submit(self, requests: Sequence[GenerationRequest]) -> list["asyncio.Future[Generation]"]:
        self.requests += requests
        return [self._answer(request) for request in requests]

    def _answer(self, request: GenerationRequest) -> "asyncio.Future[Generation]":
        text = self.write(text_of(request.prompt_ids))
        for stop in request.stop:
            before, matched, _ = text.partition(stop)
            text = before + matched + (self.carried if matched else "")
        complete = tokens_of(text)
        tokens = tuple(complete[: request.max_tokens])
        reason = "length" if len(complete) > len(tokens) else "stop"
        future: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        future.set_result(Generation(tokens, (-0.5,) * len(tokens), reason, policy_version=0))
        return future


def in_turn(*texts: str) -> Write:
    remaining = iter(texts)
    return lambda _: next(remaining)
