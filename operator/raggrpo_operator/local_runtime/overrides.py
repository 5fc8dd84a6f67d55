"""Applies `--set PATH=VALUE` and `--endpoint NAME=URL` to a job as read from YAML. Pure."""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from raggrpo_operator.core.spec.violation import Violation
from raggrpo_operator.core.spec.yaml_text import read_yaml


class InvalidOptions(Exception):
    """Options that cannot be applied; `problems` has a line for each, with what to type."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


def apply_options(raw: Any, sets: Sequence[str], endpoints: Sequence[str]) -> Any:
    """Return the job as read from YAML, with the options applied; raises BadOptions.

    Values are read as YAML. The parser decides later whether the result is a valid job, and
    suggests the nearest field for one that does not exist.
    """
    if not isinstance(raw, Mapping):
        return raw
    result = _copied(raw)
    problems = [*option_problems(sets, lambda text: _set(result, text))]
    problems += option_problems(endpoints, lambda text: _set_endpoint(result, text))
    if problems:
        raise InvalidOptions(problems)
    return result


def option_problems(options: Sequence[str], follow: Callable[[str], str]) -> list[str]:
    """Return the problems of the options; `follow` applies one and returns "" if it could."""
    return [problem for text in options if (problem := follow(text))]


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def _set(raw: dict[str, Any], text: str) -> str:
    """Apply one `--set`; return what is wrong with it, or nothing."""
    path, given, value_text = text.partition("=")
    keys = _keys(path.strip())
    if not given or not keys:
        return f"--set {text}: write --set spec.path=value, such as --set resources.device=CPU"
    value = read_yaml(value_text)
    if isinstance(value, Violation):
        return f"--set {text}: {value.message}; quote the value"
    target: Any = raw
    for at, (key, following) in enumerate(zip(keys, [*keys[1:], None], strict=True)):
        place = _dotted(keys[:at]) or "the job"
        if isinstance(key, int):
            if not isinstance(target, list) or key >= len(target):
                size = len(target) if isinstance(target, list) else 0
                return f"--set {text}: {place} has {size} items, counted from 0"
        elif not isinstance(target, dict):
            return f"--set {text}: {place} is {target!r}, it has no fields"
        if following is None:
            target[key] = value
        elif isinstance(key, int):
            target = target[key]
        else:
            if target.get(key) is None:
                target[key] = {}
            target = target[key]
    return ""


def _keys(path: str) -> list[str | int]:
    """Return the keys of a path, in which `spec.` may be omitted; empty for a malformed one."""
    if not re.fullmatch(r"[A-Za-z_][\w/-]*(\[\d+\])*(\.[A-Za-z_][\w/-]*(\[\d+\])*)*", path):
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
        return f"--endpoint {text}: write --endpoint NAME=URL"
    found: Any = raw
    for key in ("spec", "retrieval", "endpoints"):
        found = found.get(key) if isinstance(found, dict) else None
    known = {e["name"]: e for e in found or [] if isinstance(e, dict) and "name" in e}
    if name not in known:
        return f"--endpoint {text}: no endpoint {name}; {_choices(name, list(known))}"
    known[name]["url"] = url
    known[name].pop("managed", None)
    return ""


def _choices(wrong: str, known: list[str]) -> str:
    if not known:
        return "the job has no endpoints"
    near = difflib.get_close_matches(wrong, known, n=1)
    return f"did you mean {near[0]}?" if near else f"the job has {', '.join(known)}"
