"""Numeric fields of verl's configuration."""

from typing import Any, Final

from raggrpo_api.secrets.redaction import redacted_words

from .overrides import UnknownValue, Values, parse_value
from .translation import ACTOR, DEFAULTS, MODEL, ROLLOUT, shown

NUMBERS: Final = frozenset(
    {
        *(name for name, value in DEFAULTS.items() if type(value) in (int, float)),
        "algorithm.group_size",
        "algorithm.hybrid_grpo.group_size",
        "data.train_max_samples",
        "data.val_max_samples",
        "trainer.max_actor_ckpt_to_keep",
        "trainer.total_training_steps",
        f"{ACTOR}clip_ratio",
        f"{ACTOR}kl_loss_coef",
        f"{ACTOR}optim.lr_warmup_steps",
        f"{ACTOR}optim.lr_warmup_steps_ratio",
        f"{ACTOR}ppo_max_token_len_per_gpu",
        f"{ROLLOUT}max_num_batched_tokens",
        f"{ROLLOUT}multi_turn.max_assistant_turns",
        f"{MODEL}lora_rank",
        f"{MODEL}lora.rank",
    }
)
"""Fields whose values must be numbers."""

_MAX_NUMBER: Final = 1e15


def with_numbers(values: Values) -> tuple[Values, list[str]]:
    """Return the values with strings such as '1024' converted to numbers, and a line per change.

    Raises ValueError with the fields that are not numbers.
    """
    numbers: Values = {}
    lines: list[str] = []
    others: list[str] = []
    for name in sorted(values.keys() & NUMBERS):
        value = values[name]
        if value is None or isinstance(value, UnknownValue) or _is_number(value):
            continue
        number = parse_value(value) if isinstance(value, str) else value
        if _is_number(number):
            numbers[name] = number
            lines.append(f"{name}: {_quoted(value)} is a string, not a number: changed to {number}")
        else:
            is_large = type(number) in (int, float) and abs(number) >= _MAX_NUMBER
            reason = "too large" if is_large else "not a number"
            others.append(f"{name} is {_quoted(value)}, which is {reason}")
    if others:
        raise ValueError("; ".join(others))
    return values | numbers, lines


def _quoted(value: object) -> str:
    return shown(redacted_words(repr(value)))


def _is_number(value: Any) -> bool:
    """Return whether a value is a finite number with which the import can compute."""
    return type(value) in (int, float) and abs(value) < _MAX_NUMBER
