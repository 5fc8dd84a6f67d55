"""JSON values of any shape in a job: their limits, paths into them, templates inside them. Pure.

A path is names joined by dots, `[0]` for one item of a list and `[*]` for all; `$` is the whole
value: `payload.hits`, `groups[*].docs`, `choices[0].message.content`.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

from pydantic import AfterValidator, StringConstraints, WithJsonSchema

MAX_DEPTH: Final = 12
MAX_VALUES: Final = 512
MAX_TEXT: Final = 16_384
MAX_NAME: Final = 256
FREE_JSON: Final = ("body", "extraBody")
"""The fields of a job that hold any JSON."""
_NAME: Final = "[A-Za-z0-9_@:-]+"
JSON_PATH: Final = (
    rf"^((\$|(\$[.])?{_NAME}|\$?\[([*]|[0-9]{{1,4}})\])([.]{_NAME}|\[([*]|[0-9]{{1,4}})\])*)?$"
)
_STEP: Final = re.compile(rf"{_NAME}|\[[*]\]|\[[0-9]+\]")
_PLACEHOLDER: Final = re.compile(
    r"\{\{([A-Za-z_][A-Za-z0-9_.-]*)\}\}|\{([A-Za-z_][A-Za-z0-9_.-]*)\}"
)

JsonPath = Annotated[str, StringConstraints(pattern=JSON_PATH, max_length=256)]
"""A path such as `payload.hits`, or empty."""


def size_problem(value: object, max_depth: int, max_values: int) -> str:
    """Return what of a value is too much, empty if nothing is.

    By a loop: the API server takes objects ten times as deep as Python recurses, and YAML has
    aliases of themselves.
    """
    depth = number = 0
    level = [value]
    while level:
        depth, number = depth + 1, number + len(level)
        if depth > max_depth:
            return f"it is nested more than {max_depth} deep"
        if number > max_values:
            return f"it has more than {max_values} values"
        level = [
            inner
            for each in level
            if isinstance(each, Mapping | list | tuple)
            for inner in (each.values() if isinstance(each, Mapping) else each)
        ]
    return ""


def _within_limits(value: Any) -> Any:
    """Return a value from JSON. Raises ValueError if it is too deep, too large or no JSON."""
    number = 0
    waiting = [(value, 1)]
    while waiting:
        each, depth = waiting.pop()
        number += 1
        if depth > MAX_DEPTH or number > MAX_VALUES:
            raise ValueError(f"at most {MAX_DEPTH} levels and {MAX_VALUES} values")
        match each:
            case dict():
                if not all(isinstance(key, str) and len(key) <= MAX_NAME for key in each):
                    raise ValueError(f"a name is no text, or longer than {MAX_NAME} characters")
                waiting += [(item, depth + 1) for item in each.values()]
            case list():
                waiting += [(item, depth + 1) for item in each]
            case str():
                if len(each) > MAX_TEXT:
                    raise ValueError(f"a text has more than {MAX_TEXT} characters")
            case None | bool() | int() | float():
                if each is not None and not -1e308 <= each <= 1e308:
                    raise ValueError("a number is too large")
            case _:
                raise ValueError(f"{type(each).__name__} is no JSON value")
    return value


JsonTemplate = Annotated[
    Any,
    AfterValidator(_within_limits),
    WithJsonSchema(
        {
            "x-kubernetes-preserve-unknown-fields": True,
            "maxProperties": MAX_VALUES,
            "maxItems": MAX_VALUES,
            "maxLength": MAX_TEXT,
        }
    ),
]
"""Any JSON value; `{name}` in its texts is a placeholder, `{{name}}` the same text as it stands."""


def values_at(path: str, value: Any) -> list[Any]:
    """Return what a path leads to: one value, several with `[*]`, none if it leads nowhere."""
    found = [value]
    for step in _STEP.findall(path.removeprefix("$")):
        if step == "[*]":
            found = [item for each in found if isinstance(each, list) for item in each]
        elif step.startswith("["):
            at = int(step[1:-1])
            found = [each[at] for each in found if isinstance(each, list) and at < len(each)]
        else:
            found = [each[step] for each in found if isinstance(each, dict) and step in each]
    return found


def iter_texts(value: Any, place: str, name: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield (place, nearest name, text) of every text and number in a JSON value."""
    match value:
        case dict():
            for key, item in value.items():
                yield from iter_texts(item, f"{place}.{key}", key)
        case list():
            for index, item in enumerate(value):
                yield from iter_texts(item, f"{place}[{index}]", name)
        case str():
            yield place, name, value
        case int() | float() if not isinstance(value, bool):
            yield place, name, str(value)


def placeholders(template: Any) -> set[str]:
    """Return the names of all placeholders in a JSON value's texts and names."""
    match template:
        case str():
            return {name for _, name in _PLACEHOLDER.findall(template) if name}
        case dict():
            return set().union(*(placeholders(each) for each in template.values()))
        case list():
            return set().union(*(placeholders(each) for each in template))
        case _:
            return set()


def render_template(template: Any, values: Mapping[str, Any]) -> Any:
    """Return a template with its placeholders replaced. Raises KeyError with a missing name.

    A text that is one placeholder and nothing else becomes the value itself, so that `"{top_k}"`
    is sent as a number. Elsewhere a value that is no text is written as JSON.
    """
    match template:
        case str():
            whole = _PLACEHOLDER.fullmatch(template)
            if whole and whole.group(2):
                return values[whole.group(2)]
            return render_text(template, values)
        case dict():
            return {name: render_template(each, values) for name, each in template.items()}
        case list():
            return [render_template(each, values) for each in template]
        case _:
            return template


def render_text(template: str, values: Mapping[str, Any]) -> str:
    """Return a text with its placeholders replaced. Raises KeyError with a missing name."""

    def replaced(found: re.Match[str]) -> str:
        if literal := found.group(1):
            return f"{{{literal}}}"
        value = values[found.group(2)]
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    return _PLACEHOLDER.sub(replaced, template)
