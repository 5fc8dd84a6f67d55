"""Applies `--set PATH=VALUE` and `--endpoint NAME=URL` to a job read from YAML. Pure."""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from raggrpo_api.secrets.redaction import redacted_words
from raggrpo_operator.core.spec.violation import Violation
from raggrpo_operator.core.spec.yaml_text import read_yaml

MAX_LEVELS = 64
"""Levels of a path; a job has fewer."""
MAX_SHOWN = 1000
"""Characters of an option in a message."""


class InvalidOptions(Exception):
    """Some options cannot be applied; `problems` has one line with a remedy for each of them."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


def apply_options(raw: Any, sets: Sequence[str], endpoints: Sequence[str]) -> Any:
    """Return `raw`, a job read from YAML, with the options applied; raises InvalidOptions.

    Values are read as YAML. Unknown fields are set; the parser of the job rejects them later.
    """
    if not isinstance(raw, Mapping):
        return raw
    result = _copied(raw)
    problems = [*option_problems(sets, lambda text: _set(result, text))]
    problems += option_problems(endpoints, lambda text: _set_endpoint(result, text))
    if problems:
        raise InvalidOptions(problems)
    return result


def option_problems(options: Sequence[str], apply: Callable[[str], str]) -> list[str]:
    """Apply each option with `apply`, which returns a problem or ""; return all problems."""
    return [problem for text in options if (problem := apply(text))]


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def _set(raw: dict[str, Any], text: str) -> str:
    """Apply one `--set` option; return its problem or ""."""
    path, equals, value_text = text.partition("=")
    keys = _keys(path.strip())
    text = redacted_words(text[:MAX_SHOWN])
    if len(keys) > MAX_LEVELS:
        return f"--set {text}: the path has more than {MAX_LEVELS} levels; correct it"
    if not equals or not keys:
        return f"--set {text}: expected --set PATH=VALUE, such as --set resources.device=CPU"
    value = read_yaml(value_text)
    if isinstance(value, Violation):
        return f"--set {text}: {value.message}; quote the value"
    target: Any = raw
    for depth, (key, next_key) in enumerate(zip(keys, [*keys[1:], None], strict=True)):
        place = redacted_words(_dotted(keys[:depth])) or "the job"
        if isinstance(key, int):
            if not isinstance(target, list) or key >= len(target):
                size = len(target) if isinstance(target, list) else 0
                return f"--set {text}: {place} has {size} items; indices start at 0"
        elif not isinstance(target, dict):
            return f"--set {text}: {place} has no fields"
        if next_key is None:
            target[key] = value
        elif isinstance(key, int):
            target = target[key]
        else:
            if target.get(key) is None:
                target[key] = {}
            target = target[key]
    return ""


def _keys(path: str) -> list[str | int]:
    """Return the keys of a path, whose prefix `spec.` is optional, or [] for an invalid path."""
    if not re.fullmatch(r"[A-Za-z_][\w/-]*(\[\d{1,6}\])*(\.[A-Za-z_][\w/-]*(\[\d{1,6}\])*)*", path):
        return []
    keys: list[str | int] = [
        int(step[1:-1]) if step.startswith("[") else step
        for step in re.findall(r"\[\d+\]|[^.\[\]]+", path)
    ]
    return keys if keys[0] in ("spec", "metadata", "apiVersion", "kind") else ["spec", *keys]


def _dotted(keys: Sequence[str | int]) -> str:
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)
    return text.removeprefix(".")


def _set_endpoint(raw: dict[str, Any], text: str) -> str:
    name, _, url = text.partition("=")
    if not name or not url:
        return f"--endpoint {text}: expected --endpoint NAME=URL"
    endpoints: Any = raw
    for key in ("spec", "retrieval", "endpoints"):
        endpoints = endpoints.get(key) if isinstance(endpoints, dict) else None
    known = {e["name"]: e for e in endpoints or [] if isinstance(e, dict) and "name" in e}
    if name not in known:
        return f"--endpoint {text}: no endpoint {name}; {_choices(name, list(known))}"
    known[name]["url"] = url
    known[name].pop("managed", None)
    return ""


def _choices(unknown: str, known: list[str]) -> str:
    if not known:
        return "the job has no endpoints"
    near = difflib.get_close_matches(unknown, known, n=1)
    return f"did you mean {near[0]}?" if near else f"the job has {', '.join(known)}"
