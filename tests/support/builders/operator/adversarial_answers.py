"""Responses of a malicious image: valid JSON with changed values, shapes and bytes."""

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

HUGE = "x" * 70_000
VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 255, 256, 2**31, 2**53 + 1, 2**63, -(2**63) - 1, 10**400,
    1e308, -1e308, 1e-320, float("nan"), float("inf"), "", "5", "-0", "NaN", HUGE, "é" * 3000,
    "\x1b[2J\x1b]0;title\x07\x9b31m", "\u202eevil\u2066", "\ud800", "\x00", "line\nline\r\nline",
    "SUCCEEDED", "RUNNING", "Training", "Finished", "9999-99-99T99:99:99Z", "\U0001f600" * 2000,
    [], {}, [[]], [None] * 5000, {"a": {"b": {"c": []}}}, {str(i): i for i in range(3000)},
)  # fmt: skip
"""Values that replace valid ones."""


def adversarial_answers(valid: Any, seed: int) -> Iterator[bytes]:
    """Yield variants of a valid JSON value forever; about every tenth is valid."""
    chance = random.Random(seed)
    while True:
        value = copy.deepcopy(valid)
        for _ in range(chance.randrange(4)):
            value = _changed(value, chance)
        yield _mangled(json.dumps(value), chance)


def adversarial_value(valid: Any, chance: random.Random) -> Any:
    """Return the value with up to three of its elements replaced, removed or repeated."""
    value = copy.deepcopy(valid)
    for _ in range(chance.randrange(1, 4)):
        value = _changed(value, chance)
    return value


def _changed(value: Any, chance: random.Random) -> Any:
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(list(value))
        what = chance.random()
        if what < 0.1:
            del value[key]
        elif what < 0.2:
            value[chance.choice((HUGE, "\x1b[1m", "", "attempt", "\ud800"))] = value[key]
        else:
            value[key] = _changed(value[key], chance)
        return value
    if isinstance(value, list) and value and chance.random() < 0.8:
        place = chance.randrange(len(value))
        value[place] = _changed(value[place], chance)
        return value * chance.choice((1, 1, 1, 2, 500))
    return copy.deepcopy(chance.choice(VALUES))


def _mangled(text: str, chance: random.Random) -> bytes:
    raw = text.encode()
    match chance.randrange(12):
        case 0:
            return raw[: chance.randrange(len(raw) + 1)]
        case 1:
            return b"[" * 100_000
        case 2:
            return b'{"a":' * 50_000 + b"1" + b"}" * 50_000
        case 3:
            place = chance.randrange(len(raw) + 1)
            return raw[:place] + bytes(chance.randrange(256) for _ in range(9)) + raw[place:]
        case 4:
            return raw + raw
        case 5:
            return b"\xef\xbb\xbf" + raw
        case _:
            return raw
