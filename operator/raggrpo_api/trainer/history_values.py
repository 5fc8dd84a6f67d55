"""Types and ranges of the values in a training history, which others may have changed. Pure."""

import json
from collections.abc import Callable
from typing import Any

Record = dict[str, Any]
Check = Callable[[Any], bool]

MAX_INTEGER = 1 << 53
MAX_FLOAT = 1e100
"""Maximum of a number; charts take logarithms and multiples."""
MIN_FLOAT = 1e-100
"""Numbers closer to 0 are 0."""
MAX_KEYS = 256
"""Maximum number of stages, rewards or endpoints of a record."""
MAX_NAME = 256
"""Maximum length of a name in characters."""


def parse_record(line: bytes) -> Record:
    """Return the record of a line, with None for numbers that are not finite or out of range.

    Raises ValueError if the line is not a JSON object.
    """
    try:
        record = json.loads(line, parse_constant=_none, parse_float=_float, parse_int=_int)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")
    return record


def usable_values(record: Record) -> tuple[Record, list[str]]:
    """Return the usable values of a record, and the names of its other values.

    The values are {} if a required one is not usable.
    """
    required = _required_of_event(record) if "event" in record else _REQUIRED
    optional, other = (_EVENT, _is_any) if "event" in record else (_STEP, _is_number)
    checks = {**optional, **required}
    names = [name for name, check in required.items() if not check(record.get(name))]
    if names:
        return {}, names
    wrong = [name for name, value in record.items() if not checks.get(name, other)(value)]
    rejected = frozenset(wrong)
    return {name: value for name, value in record.items() if name not in rejected}, wrong


def _required_of_event(record: Record) -> dict[str, Check]:
    """Return the checks of the values without which an event of this name is not usable."""
    name = record["event"]
    of_event = _EVENTS.get(name, {}) if isinstance(name, str) else {}
    return {**_IDENTITY, "event": _is_name, **of_event}


def _is_any(_: object) -> bool:
    return True


def _is_name(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_NAME


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_duration(value: object) -> bool:
    return type(value) in (int, float)


def _is_number(value: object) -> bool:
    return value is None or type(value) in (int, float)


def _is_mapping_of(check: Check) -> Check:
    def is_mapping(value: object) -> bool:
        return (
            isinstance(value, dict)
            and len(value) <= MAX_KEYS
            and all(_is_name(name) and check(each) for name, each in value.items())
        )

    return is_mapping


def _is_calls(value: object) -> bool:
    """Return whether a value summarizes the calls to an endpoint."""
    return (
        isinstance(value, dict)
        and _is_count(value.get("answered"))
        and _is_count(value.get("retries", 0))
        and _is_mapping_of(_is_count)(value.get("failures"))
        and all(name in value and _is_number(value[name]) for name in ("p50", "p95"))
    )


_IDENTITY: dict[str, Check] = {"epoch": _is_count, "attempt": _is_count}
_REQUIRED: dict[str, Check] = {**_IDENTITY, "step": _is_count}
"""Values without which a step is not usable."""
_STEP: dict[str, Check] = {
    "time": _is_text,
    "seconds": _is_mapping_of(_is_duration),
    "shares": _is_mapping_of(_is_duration),
    "reward_parts": _is_mapping_of(_is_number),
    "retrieval": _is_mapping_of(_is_calls),
}
"""Values of a step that are not plain numbers."""
_EVENT: dict[str, Check] = {"step": _is_count, "time": _is_text, "stage": _is_text}
_EVENTS: dict[str, dict[str, Check]] = {
    "checkpoint": {"step": _is_count, "path": _is_text, "seconds": _is_duration},
    "stage": {"left": _is_name, "seconds": _is_duration},
    "failed_step": {"retrieval": _is_mapping_of(_is_calls)},
    "validation": {
        "step": _is_count,
        "when": _is_name,
        "exact_match": _is_number,
        "reward_mean": _is_number,
        "control_exact_match": _is_number,
        "num_samples": _is_count,
        "num_failed": _is_count,
    },
}
"""Required values of the events that reports and resumes use."""


def _none(_: str) -> None:
    return None


def _float(text: str) -> float | None:
    value = float(text)
    if abs(value) > MAX_FLOAT:
        return None
    return value if abs(value) >= MIN_FLOAT else 0.0


def _int(text: str) -> int | None:
    value = int(text) if len(text) < 20 else MAX_INTEGER
    return value if abs(value) < MAX_INTEGER else None
