"""Parsing of configurations and overrides into values by dotted path."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from raggrpo_api.fields.json_values import size_problem
from raggrpo_api.secrets.redaction import redacted_words
from raggrpo_operator.core.spec.violation import Violation
from raggrpo_operator.core.spec.yaml_text import read_yaml

Values = dict[str, Any]
HOME: Final = "$HOME"
MAX_DEPTH: Final = 64
MAX_VALUES: Final = 10_000
"""Limits of a configuration; verl's has about 500 values. Aliases count as often as they occur."""
MAX_NAME: Final = 256
"""Maximum characters of a field's path, of a group and of an option."""
OVERRIDE: Final = re.compile(r"\+{0,2}([a-z_]\w*(?:\.\w+)+)=(.*)", re.DOTALL)


class Unreadable(Exception):
    """Raised for a text that is neither a configuration nor a script with overrides."""


@dataclass(frozen=True, slots=True)
class UnknownValue:
    """A value that the files do not contain."""

    text: str
    """Source text of the value."""
    reason: str


def parse_mapping(text: str) -> Mapping[Any, Any]:
    """Return the mapping of a YAML text. Raises Unreadable."""
    raw = read_yaml(text)
    if isinstance(raw, Violation):
        raise Unreadable(raw.line())
    if not isinstance(raw, Mapping):
        raise Unreadable("it is not a mapping: specify a Hydra YAML or .sh script of verl")
    if problem := size_problem(raw, MAX_DEPTH, MAX_VALUES):
        raise Unreadable(problem)
    return raw


def read_overrides(words: Sequence[str]) -> Values:
    """Return the overrides of a command line. Raises Unreadable for other words."""
    values: Values = {}
    for word in words:
        match = OVERRIDE.fullmatch(word)
        if match is None:
            raise Unreadable(f"{redacted_words(word)}: write an override as name.of.field=value")
        values[short_name(match[1])] = parse_value(match[2])
    return values


def flatten(value: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted path, value) of every leaf of a mapping."""
    for name, item in value.items():
        path = f"{prefix}{short_name(str(name))}"
        if isinstance(item, Mapping) and item:
            yield from flatten(item, f"{path}.")
        else:
            yield short_name(path), item


def short_name(text: str) -> str:
    """Return a name unchanged. Raises Unreadable if it has more than MAX_NAME characters."""
    if len(text) > MAX_NAME:
        raise Unreadable(f"the name {text[:60]}… has more than {MAX_NAME} characters")
    return text


def parse_value(text: str) -> Any:
    """Return the value of an override, or the text itself if it is not YAML or too large."""
    value = read_yaml(text)
    is_usable = not isinstance(value, Violation) and not size_problem(value, MAX_DEPTH, MAX_VALUES)
    return value if is_usable else text
