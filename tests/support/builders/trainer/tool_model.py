"""A tiny model that calls the tool `search` and answers, without training.

The next token depends on the current one as in `transitions`; random weights of the other parts
make each logprob depend on the whole text. Calls are spelled in several ways, and words letter by
letter, so about half of the replies would change if they were tokenized again.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.builders.trainer.gateway_models import END, HERMES, SPECIAL

OPEN, CLOSE = '<tool_call>\n{"name": "search", "arguments": {"query": "', '"}}\n</tool_call>'
COMPACT_OPEN, COMPACT_CLOSE = (
    '<tool_call>{"name":"search","arguments":{"query":"',
    '"}}</tool_call>',
)
PHRASES = (OPEN, CLOSE, COMPACT_OPEN, COMPACT_CLOSE)
QUERY_LETTERS, ANSWER_LETTERS = "abcdefgh", "stuvwxyz"
PAIRS = [
    first + second
    for letters in (QUERY_LETTERS, ANSWER_LETTERS)
    for first in letters
    for second in letters
]
"""Tokens of the tokenizer that the model does not sample."""
SCHEMA = '{"function": {"parameters": {"properties": {"query": {"type": "string"}}, "required"'
HIDDEN = 512
"""One dimension per token."""
EMBEDDING, CERTAINTY = 10.0, 14.0
"""Scale of embeddings, and logit of a certain transition where all others have 0."""


def transitions() -> dict[str, dict[str, float]]:
    """Return the probability of each next token by the current token."""
    call = {OPEN: 0.5, COMPACT_OPEN: 0.2}
    end = {END: 0.85, "\n": 0.15}
    query = dict.fromkeys(QUERY_LETTERS, 0.6 / len(QUERY_LETTERS))
    answer = dict.fromkeys(ANSWER_LETTERS, 0.5 / len(ANSWER_LETTERS))
    return {
        "\n": call | {"[": 0.3},
        **{each: {k: v / 0.6 for k, v in query.items()} for each in (OPEN, COMPACT_OPEN)},
        **dict.fromkeys(QUERY_LETTERS, query | {CLOSE: 0.3, COMPACT_CLOSE: 0.1}),
        **dict.fromkeys((CLOSE, COMPACT_CLOSE), end),
        "[": {k: v / 0.5 for k, v in answer.items()},
        **dict.fromkeys(ANSWER_LETTERS, answer | {"]": 0.5}),
        "]": {END: 1.0},
    }


def write_tool_model(folder: Path) -> Path:
    """Write model and tokenizer as a Hugging Face folder; return it."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tokenizer = _tokenizer()
    assert len(tokenizer) <= HIDDEN
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = Qwen2ForCausalLM(config)
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(EMBEDDING * torch.eye(len(tokenizer), HIDDEN))
        model.lm_head.weight.zero_()
        for current, following, logit in _logits(tokenizer):
            model.lm_head.weight[following, current] = logit / math.sqrt(HIDDEN)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _tokenizer() -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    table = Tokenizer(models.BPE())
    table.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    table.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=[*SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    table.train_from_iterator([SCHEMA, HERMES, *PAIRS * 20], trainer)
    table.add_tokens([AddedToken(each, normalized=False) for each in PHRASES])
    return PreTrainedTokenizerFast(
        tokenizer_object=table,
        eos_token=END,
        chat_template=HERMES,
        clean_up_tokenization_spaces=False,
    )


def _logits(tokenizer: Any) -> Iterator[tuple[int, int, float]]:
    """Yield current token, next token and logit."""

    def token(text: str) -> int:
        [only] = tokenizer.encode(text, add_special_tokens=False)
        return int(only)

    for current, following in transitions().items():
        for text, probability in following.items():
            yield token(current), token(text), CERTAINTY + math.log(probability)
