"""Read configurations and overrides as values by dotted path."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from raggrpo_operator.core.spec.violation import Violation
from raggrpo_operator.core.spec.yaml_text import read_yaml

Values = dict[str, Any]
HOME: Final = "$HOME"
OVERRIDE: Final = re.compile(r"\+{0,2}([a-z_]\w*(?:\.\w+)+)=(.*)", re.DOTALL)


class Unreadable(Exception):
    """The text is neither a configuration nor a script with overrides."""


@dataclass(frozen=True, slots=True)
class UnknownValue:
    """A value that the files do not hold."""

    text: str
    """As it is written."""
    reason: str


def parse_mapping(text: str) -> Mapping[Any, Any]:
    """Return the mapping that a YAML text holds. Raises Unreadable."""
    raw = read_yaml(text)
    if isinstance(raw, Violation):
        raise Unreadable(raw.line())
    if not isinstance(raw, Mapping):
        raise Unreadable("it is no mapping: give verl's Hydra YAML, or its .sh script")
    return raw


def read_overrides(words: Sequence[str]) -> Values:
    """Return overrides given on the command line. Raises Unreadable for what is none."""
    values: Values = {}
    for word in words:
        found = OVERRIDE.fullmatch(word)
        if found is None:
            raise Unreadable(f"{word}: write an override as name.of.field=value")
        values[found[1]] = parse_value(found[2])
    return values


def flatten(value: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted path, value) of every leaf of a mapping."""
    for name, item in value.items():
        key = str(name)
        if isinstance(item, Mapping) and item:
            yield from flatten(item, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", item


def parse_value(text: str) -> Any:
    """Return the value that an override's text means, the text itself if it is no YAML."""
    found = read_yaml(text)
    return text if isinstance(found, Violation) else found
