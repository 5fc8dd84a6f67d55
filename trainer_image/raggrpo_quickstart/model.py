"""A tiny causal model and its tokenizer, created from scratch and warmed up by supervised steps.

The warm-up teaches the format of an answer and the basics of copying it from a passage. The codes
in its examples are random, so the model cannot memorize them and has to read the passages.
"""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from transformers.utils import logging

from .records import Question, Record

PROMPT_TEMPLATE = "{passages}{prompt}"
PASSAGE_TEMPLATE = "{text}\n"
END = "<|end|>"
NAME_TOKENS = 3000
HIDDEN, HEADS, LAYERS = 128, 4, 2
ROPE_BASE = 1e6
SHARPNESS = 6.0
"""Initial bias of queries and keys that makes a first-layer head attend to one distance."""
MATCH_SCALE = 1.4
"""Initial scale of second-layer queries and keys; a larger scale sharpens the attention."""
COPY_SCALE = 5.0
"""Initial weight of the copied embedding relative to the embedding of the current token."""
LOGIT_SCALE = 0.15
"""Initial weight of the final norm; an exact copy has a logit of HIDDEN times this weight."""
LEARNING_RATE, BATCH = 6e-3, 48


def make_tokenizer(records: Sequence[Record]) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer trained on the names; each answer is a single token."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\n| ?[^\s]+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=NAME_TOKENS,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator([f"{record.question}\n" for record in records], trainer)
    answers = sorted({record.answer for record in records})
    bpe.add_tokens([AddedToken(answer, normalized=False) for answer in answers])
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=END, pad_token=END)


def make_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen2ForCausalLM:
    """Return a Qwen2 model of about 1.7M parameters, initialized close to a model that copies.

    Copying takes two heads in sequence (Olsson et al. 2022, "induction heads"): one adds the
    preceding token to each position, the other attends to earlier occurrences of the current
    token. These heads need thousands of steps if trained from scratch, but only a dozen steps from
    this initialization.
    """
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_BASE},
        initializer_range=0.05,
    )
    model = Qwen2ForCausalLM(config)
    with torch.no_grad():
        model.model.embed_tokens.weight.normal_()
        model.model.norm.weight.fill_(LOGIT_SCALE)
        _initialize_copying(*(layer.self_attn for layer in model.model.layers))
    return model


def warm_up(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    questions: Sequence[Question],
    codes: Sequence[str],
    *,
    steps: int,
    seed: int,
    report: Callable[[int, float], None],
) -> None:
    """Train on the answer tokens only, with a linear warm-up of the learning rate.

    `report` is called with step and loss. `codes` must include the codes of validation records,
    because the model unlearns tokens that are never a target.
    """
    rng = random.Random(seed)
    optimizer = torch.optim.AdamW(
        model.parameters(), LEARNING_RATE, weight_decay=0.01, betas=(0.9, 0.95)
    )
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * step / steps
        examples = [_example(q, codes, rng, tokenizer) for q in rng.sample(questions, BATCH)]
        ids, targets = _padded(examples, tokenizer.pad_token_id)
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
        labels = targets[:, 1:]
        logits = model.lm_head(hidden[labels >= 0])
        loss = functional.cross_entropy(logits, labels[labels >= 0])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        report(step, loss.item())


def prompt_text(question: Question, passages: Sequence[str]) -> str:
    """Return the prompt as the trainer composes it from the templates of this module."""
    text = "".join(PASSAGE_TEMPLATE.format(index=i, text=p) for i, p in enumerate(passages, 1))
    return PROMPT_TEMPLATE.format(passages=text, prompt=question.record.question)


def save(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Save model and tokenizer as a Hugging Face folder."""
    logging.disable_progress_bar()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _initialize_copying(first: Any, second: Any) -> None:
    """Initialize two attention layers to copy, with one slot of the hidden space per head.

    Slot 0 contains the token's embedding. Head d of the first layer copies slot 0 of the token d
    positions back into slot d. Head d of the second layer attends to the positions whose slot d
    matches slot d - 1 of the current token, and copies their whole hidden state.
    """
    size = HIDDEN // HEADS
    slots = torch.linalg.qr(torch.randn(HIDDEN, HIDDEN)).Q.T.view(HEADS, size, HIDDEN)
    first.v_proj.weight.copy_(slots[0].repeat(HEADS, 1))
    first.o_proj.weight.zero_()
    torch.nn.init.orthogonal_(second.v_proj.weight)
    second.o_proj.weight.copy_(COPY_SCALE * second.v_proj.weight.T)
    for head in range(HEADS - 1):
        rows = slice(head * size, (head + 1) * size)
        _attend_at_distance(first, rows, distance=head + 1)
        first.o_proj.weight[:, rows] = slots[head + 1].T
        second.q_proj.weight[rows] = MATCH_SCALE * slots[head]
        second.k_proj.weight[rows] = MATCH_SCALE * slots[head + 1]


def _attend_at_distance(attention: Any, rows: slice, distance: int) -> None:
    """Set the query and key biases of one head so that it attends to tokens at `distance`."""
    size = HIDDEN // HEADS
    angle = -distance * ROPE_BASE ** (-torch.arange(0, size, 2) / size)
    keys = attention.k_proj.bias[rows]
    queries = attention.q_proj.bias[rows]
    keys[: size // 2] = SHARPNESS
    queries[: size // 2] = SHARPNESS * torch.cos(angle)
    queries[size // 2 :] = SHARPNESS * torch.sin(angle)


def _example(
    question: Question, codes: Sequence[str], rng: random.Random, tokenizer: PreTrainedTokenizerFast
) -> tuple[list[int], list[int]]:
    """Return the prompt and answer tokens of a question, with a random code in each passage."""
    hits = rng.sample(question.hits, len(question.hits))
    drawn = {record: rng.choice(codes) for record in hits}
    text = prompt_text(question, [record.passage(drawn[record]) for record in hits])
    prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
    answer = tokenizer(f" [{drawn[question.record]}]", add_special_tokens=False)["input_ids"]
    return prompt, [*answer, tokenizer.eos_token_id]


def _padded(
    examples: Sequence[tuple[list[int], list[int]]], padding: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens [B, T] and targets [B, T]; targets outside the answer are -1."""
    width = max(len(prompt) + len(answer) for prompt, answer in examples)
    ids = torch.full((len(examples), width), padding)
    targets = torch.full((len(examples), width), -1)
    for row, (prompt, answer) in enumerate(examples):
        end = len(prompt) + len(answer)
        ids[row, :end] = torch.tensor(prompt + answer)
        targets[row, len(prompt) : end] = torch.tensor(answer)
    return ids, targets
