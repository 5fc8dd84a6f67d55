"""Read a Hydra configuration, or a shell script with overrides, as values by dotted path.

A script is never run: plain assignments, `${NAME:-default}` and words such as `data.seed=1` are
understood, conditions and commands are not.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from raggrpo_operator.core.spec.violation import Violation
from raggrpo_operator.core.spec.yaml_text import read_yaml

Values = dict[str, Any]
HOME: Final = "$HOME"
_OVERRIDE: Final = re.compile(r"\+{0,2}([a-z_]\w*(?:\.\w+)+)=(.*)", re.DOTALL)
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE: Final = re.compile(r"\$\{(\w+)(?::?-([^{}]*))?\}|\$(\w+)")
_REFERENCE: Final = re.compile(r"\$\{(?:oc\.select:)?([\w.]+)(?:,\s*([^}]*))?\}")
_MAX_EXPANSIONS: Final = 8


class Unreadable(Exception):
    """The text is neither a configuration nor a script with overrides."""


def read_hydra(text: str) -> Values:
    """Return the values of a configuration; `defaults` and `hydra` are Hydra's own."""
    raw = read_yaml(text)
    if isinstance(raw, Violation):
        raise Unreadable(raw.line())
    if not isinstance(raw, Mapping):
        raise Unreadable("it is no mapping: give verl's Hydra YAML, or its .sh script")
    own = {key: value for key, value in raw.items() if key not in ("defaults", "hydra")}
    return dict(_flat(own))


def read_script(text: str) -> Values:
    """Return the overrides in a shell script, its own variables put in."""
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise Unreadable(f"its quotes do not match ({error})") from error
    variables: dict[str, str] = {}
    values: Values = {}
    for word in words:
        if found := _OVERRIDE.fullmatch(word):
            values[found[1]] = _value(_expanded(found[2], variables))
        elif found := _ASSIGNMENT.fullmatch(word):
            variables.setdefault(found[1], _expanded(found[2], variables))
    if not values:
        raise Unreadable("there is no override such as data.train_batch_size=128 in it")
    return values


def read_overrides(words: Sequence[str]) -> Values:
    """Return overrides given on the command line. Raises Unreadable for what is none."""
    values: Values = {}
    for word in words:
        found = _OVERRIDE.fullmatch(word)
        if found is None:
            raise Unreadable(f"{word}: write an override as name.of.field=value")
        values[found[1]] = _value(found[2])
    return values


def resolved(values: Values) -> Values:
    """Return the values with references such as ${data.max_prompt_length} filled in."""
    return {path: _filled(value, values) for path, value in values.items()}


def _flat(value: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, item in value.items():
        key = "n" if name is False else str(name)  # YAML 1.1 takes a bare n for false
        if isinstance(item, Mapping) and item:
            yield from _flat(item, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", item


def _expanded(text: str, variables: Mapping[str, str]) -> str:
    def put_in(found: "re.Match[str]") -> str:
        name = found[1] or found[3]
        if name == "HOME":
            return HOME
        return variables.get(name, found[2] if found[2] is not None else "")

    for _ in range(_MAX_EXPANSIONS):
        text, before = _VARIABLE.sub(put_in, text), text
        if text == before:
            break
    return text


def _value(text: str) -> Any:
    found = read_yaml(text)
    return text if isinstance(found, Violation) else found


def _filled(value: Any, values: Values) -> Any:
    if not isinstance(value, str) or not (found := _REFERENCE.fullmatch(value)):
        return value
    if found[1] in values and values[found[1]] != value:
        return values[found[1]]
    return _value(found[2]) if found[2] else None
