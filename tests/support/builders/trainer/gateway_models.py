"""Tokenizers, chat templates and a scripted engine for tests of the gateway."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from raggrpo_trainer.engines.generation import Generation, GenerationRequest

END, OTHER_END = "<|im_end|>", "<|endoftext|>"
HERMES = """\
{%- if tools %}<|im_start|>system
{{ messages[0].content if messages[0].role == 'system' else 'Help.' }}
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}<|im_start|>assistant
{{ message.content }}
{%- for call in message.tool_calls or [] %}
{{- '\\n' if message.content or not loop.first }}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% elif message.role == 'tool' %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% elif message.role != 'system' %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""Writes tool calls as JSON, as Qwen 2.5's template."""
DROPS_REASONING = HERMES.replace(
    "{{ message.content }}\n{%- for call",
    "{{ message.content.split('</think>')[-1].lstrip('\\n') }}\n{%- for call",
)
"""Drops the reasoning of earlier turns, as the templates of reasoning models."""
OTHER_ENDS = HERMES.replace("{%- endfor %}<|im_end|>", "{%- endfor %}<|endoftext|>")
"""Ends assistant messages with another token than the model samples."""
TRIMS = HERMES.replace("{{ message.content }}\n{%- for", "{{ message.content | trim }}\n{%- for")
TEMPLATES = {
    "hermes": HERMES,
    "drops-reasoning": DROPS_REASONING,
    "other-ends": OTHER_ENDS,
    "trims": TRIMS,
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}
]
USER: Any = {"role": "user", "content": "q"}
SPECIAL = (OTHER_END, "<|im_start|>", END, "<bos>")


@cache
def byte_tokenizer(template: str = HERMES) -> Any:
    """Return a byte-level BPE tokenizer whose merges follow the words of the tests."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    table = Tokenizer(models.BPE())
    table.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    table.decoder = decoders.ByteLevel()
    corpus = ['<tool_call>\n{"name": "search", "arguments": {"query": "the red fox"}}\n'] * 9
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[*SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    table.train_from_iterator([*corpus, HERMES], trainer)
    return _fast(table, template)


@cache
def spaced_tokenizer(template: str = HERMES) -> Any:
    """Return a tokenizer that adds a space before each text, as SentencePiece does."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    table = Tokenizer(models.BPE(unk_token="?"))
    table.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    table.decoder = decoders.Metaspace(prepend_scheme="always")
    alphabet = [chr(code) for code in range(32, 127)] + ["\n", "é"]
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["?", *SPECIAL],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    table.train_from_iterator([HERMES, "the red fox"] * 3, trainer)
    return _fast(table, template)


def _fast(table: Any, template: str) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=table,
        eos_token=END,
        chat_template=template,
        clean_up_tokenization_spaces=False,
    )


def write_byte_model(folder: Path) -> Path:
    """Write a tiny untrained model with the byte-level tokenizer; return the folder."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tokenizer = byte_tokenizer()
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def ids_of(tokenizer: Any, text: str) -> tuple[int, ...]:
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def respelled(tokenizer: Any, text: str, seed: int = 0) -> tuple[int, ...]:
    """Return other tokens for the same text: it is tokenized in random pieces."""
    chance = random.Random(seed)
    ids: tuple[int, ...] = ()
    while text:
        size = chance.randint(1, 4)
        ids += ids_of(tokenizer, text[:size])
        text = text[size:]
    return ids


Says = Callable[[GenerationRequest], Generation | Exception]


@dataclass
class ScriptedEngine:
    """Completes requests by a function; records them."""

    says: Says
    requests: list[GenerationRequest] = field(default_factory=list)
    held: asyncio.Event | None = None
    """Requests wait for it."""
    arrived: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    """Released for each request."""

    def submit(self, requests: Sequence[GenerationRequest]) -> list[Awaitable[Generation]]:
        self.requests += requests
        return [asyncio.ensure_future(self._complete(request)) for request in requests]

    async def _complete(self, request: GenerationRequest) -> Generation:
        self.arrived.release()
        if self.held is not None:
            await self.held.wait()
        result = self.says(request)
        if isinstance(result, Exception):
            raise result
        return result


def generation(ids: Sequence[int], reason: str = "stop") -> Generation:
    """Return a completion with a different logprob for each token."""
    return Generation(
        tuple(ids), tuple(-0.001 * (1 + i + token) for i, token in enumerate(ids)), reason, 0
    )


def in_turn(tokenizer: Any, *texts: str | Sequence[int] | Generation) -> Says:
    """Return the function that completes with one text after the other, each with its end token."""
    rest = list(texts)

    def says(_: GenerationRequest) -> Generation:
        item = rest.pop(0)
        if isinstance(item, Generation):
            return item
        if isinstance(item, str):
            return generation((*ids_of(tokenizer, item), tokenizer.eos_token_id))
        return generation(item)

    return says
