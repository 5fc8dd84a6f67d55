"""JSON values in a job: size limits, paths and templates. Pure.

A path consists of names joined by dots, `[0]` for an item of a list and `[*]` for all items; `$` is
the whole value: `payload.hits`, `groups[*].docs`, `choices[0].message.content`.
"""

import json
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Annotated, Any, Final

from pydantic import AfterValidator, StringConstraints, WithJsonSchema

MAX_DEPTH: Final = 12
MAX_VALUES: Final = 512
MAX_TEXT: Final = 16_384
MAX_NAME: Final = 256
FREE_JSON: Final = ("body", "extraBody", "request")
"""Fields of a job that accept arbitrary JSON."""
_NAME: Final = "[A-Za-z0-9_@:-]+"
JSON_PATH: Final = (
    rf"^((\$|(\$[.])?{_NAME}|\$?\[([*]|[0-9]{{1,4}})\])([.]{_NAME}|\[([*]|[0-9]{{1,4}})\])*)?$"
)
_STEP: Final = re.compile(rf"{_NAME}|\[[*]\]|\[[0-9]+\]")
_PLACEHOLDER: Final = re.compile(
    r"\{\{([A-Za-z_][A-Za-z0-9_.-]*)\}\}|\{([A-Za-z_][A-Za-z0-9_.-]*)\}"
)

JsonPath = Annotated[str, StringConstraints(pattern=JSON_PATH, max_length=256)]
"""A path such as `payload.hits`, or ""."""


def size_problem(value: object, max_depth: int, max_values: int) -> str:
    """Return a description of how a value exceeds the limits, or "" if it is within them.

    Iterative, because the API server accepts objects nested deeper than Python's recursion limit
    and YAML aliases may be circular.
    """
    depth = 0
    count = 0
    level = [value]
    while level:
        depth += 1
        count += len(level)
        if depth > max_depth:
            return f"the value is nested more than {max_depth} levels deep"
        if count > max_values:
            return f"the value contains more than {max_values} values"
        inner = (
            inner
            for each in level
            if isinstance(each, Mapping | list | tuple)
            for inner in (each.values() if isinstance(each, Mapping) else each)
        )
        level = list(islice(inner, max_values - count + 1))  # aliases may repeat large values
    return ""


def _within_limits(value: Any) -> Any:
    """Return the value unchanged. Raises ValueError if it exceeds the limits or is not JSON."""
    count = 0
    pending = [(value, 1)]
    while pending:
        each, depth = pending.pop()
        count += 1
        if depth > MAX_DEPTH or count > MAX_VALUES:
            raise ValueError(
                f"the value has more than {MAX_DEPTH} levels or {MAX_VALUES} values; simplify it"
            )
        match each:
            case dict():
                if not all(isinstance(key, str) and len(key) <= MAX_NAME for key in each):
                    raise ValueError(
                        f"a name is not a string of at most {MAX_NAME} characters; shorten it"
                    )
                pending += [(item, depth + 1) for item in each.values()]
            case list():
                pending += [(item, depth + 1) for item in each]
            case str():
                if len(each) > MAX_TEXT:
                    raise ValueError(f"a string has more than {MAX_TEXT} characters; shorten it")
            case None | bool() | int() | float():
                if each is not None and not -1e308 <= each <= 1e308:
                    raise ValueError("a number is too large; write it as a string")
            case _:
                raise ValueError(f"{type(each).__name__} is not a JSON value")
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
"""Any JSON value; `{name}` in its strings is a placeholder, `{{name}}` a literal `{name}`."""


def values_at(path: str, value: Any) -> list[Any]:
    """Return the values at a path: several for `[*]`, none if the path does not exist."""
    matches = [value]
    for step in _STEP.findall(path.removeprefix("$")):
        if step == "[*]":
            matches = [item for each in matches if isinstance(each, list) for item in each]
        elif step.startswith("["):
            index = int(step[1:-1])
            matches = [
                each[index] for each in matches if isinstance(each, list) and index < len(each)
            ]
        else:
            matches = [each[step] for each in matches if isinstance(each, dict) and step in each]
    return matches


def iter_texts(value: Any, place: str, name: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield (path, name of the enclosing field, text) of each string and number in a JSON value."""
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
    """Return the names of all placeholders in the strings of a JSON value."""
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
    """Return a template with its placeholders replaced. Raises KeyError for an unknown name.

    A string that consists of one placeholder becomes the value itself, so that `"{top_k}"` is sent
    as a number. Within longer strings, values other than strings are written as JSON.
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
    """Return a string with its placeholders replaced. Raises KeyError for an unknown name."""

    def replace(match: re.Match[str]) -> str:
        if literal := match.group(1):
            return f"{{{literal}}}"
        value = values[match.group(2)]
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    return _PLACEHOLDER.sub(replace, template)
