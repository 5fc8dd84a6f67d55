"""Read a Hydra configuration, or a shell script with overrides, as values by dotted path.

A script is never run: plain assignments, `${NAME:-default}`, `$(pwd)`, sums and products of whole
numbers, Hydra's options and words such as `data.seed=1` are understood, nothing else is.
"""

import ast
import operator
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from raggrpo_operator.core.spec.violation import Violation
from raggrpo_operator.core.spec.yaml_text import read_yaml

Values = dict[str, Any]
HOME: Final = "$HOME"
_OVERRIDE: Final = re.compile(r"\+{0,2}([a-z_]\w*(?:\.\w+)+)=(.*)", re.DOTALL)
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_OPTION: Final = re.compile(r"(--config-(?:path|name|dir)|-c[pnd])(?:=(.*))?", re.DOTALL)
_OPTIONS: Final = {"-cp": "--config-path", "-cn": "--config-name", "-cd": "--config-dir"}
_ARITHMETIC: Final = re.compile(r"\$\(\((.{1,200}?)\)\)", re.DOTALL)
_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_OPERATORS: Final[Mapping[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
}
_HERE: Final = re.compile(r"\$\(pwd\)|`pwd`|\$\{?PWD\b\}?")
_VARIABLE: Final = re.compile(r"\$\{(\w+)(?::?-([^{}]*))?\}|\$(\w+)")
_REFERENCE: Final = re.compile(r"\$\{(?:oc\.select:)?([\w.]+)(?:,\s*([^}]*))?\}")
_MAX_EXPANSIONS: Final = 8


class Unreadable(Exception):
    """The text is neither a configuration nor a script with overrides."""


@dataclass
class Script:
    """What a shell script hands to verl."""

    overrides: Values = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    """Hydra's own, by their long names: --config-name."""
    choices: dict[str, str] = field(default_factory=dict)
    """Options of groups: model_engine=megatron."""
    computed: list[str] = field(default_factory=list)
    """Overrides whose values only the shell can compute."""


def mapping_in(text: str) -> Mapping[Any, Any]:
    """Return the mapping that a YAML text holds. Raises Unreadable."""
    raw = read_yaml(text)
    if isinstance(raw, Violation):
        raise Unreadable(raw.line())
    if not isinstance(raw, Mapping):
        raise Unreadable("it is no mapping: give verl's Hydra YAML, or its .sh script")
    return raw


def read_script(text: str) -> Script:
    """Return the overrides and options in a shell script, its own variables put in."""
    plain = _HERE.sub(".", text).replace("\\\n", " ")
    plain = _ARITHMETIC.sub(lambda found: re.sub(r"\s", "", found[0]), plain)  # one word each
    try:
        words = shlex.split(plain, comments=True)
    except ValueError as error:
        raise Unreadable(f"its quotes do not match ({error})") from error
    variables: dict[str, str] = {}
    script = Script()
    is_verl = False
    rest = iter(words)
    for word in rest:
        is_verl = is_verl or word.startswith("verl.")
        if found := _OVERRIDE.fullmatch(word):
            value = _expanded(found[2], variables)
            if value.startswith("$(("):
                script.computed.append(found[1])
            else:
                script.overrides[found[1]] = _value(value)
        elif found := _OPTION.fullmatch(word):
            value = next(rest, "") if found[2] is None else found[2]
            script.options[_OPTIONS.get(found[1], found[1])] = _expanded(value, variables)
        elif found := _ASSIGNMENT.fullmatch(word):
            value = _expanded(found[2], variables)
            (script.choices if is_verl else variables).setdefault(found[1], value)
    if not script.overrides and not script.options:
        raise Unreadable("there is no override such as data.train_batch_size=128 in it")
    return script


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


def flat(value: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted path, value) of every leaf of a mapping."""
    for name, item in value.items():
        key = "n" if name is False else str(name)  # YAML 1.1 takes a bare n for false
        if isinstance(item, Mapping) and item:
            yield from flat(item, f"{prefix}{key}.")
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
    return _ARITHMETIC.sub(lambda found: _computed(found, variables), text)


def _computed(found: "re.Match[str]", variables: Mapping[str, str]) -> str:
    """Return the result of an arithmetic expansion, or its text if that is not understood."""
    expression = _NAME.sub(lambda name: variables.get(name[0], name[0]), found[1])
    try:
        return str(_integer(ast.parse(expression, mode="eval").body))
    except (SyntaxError, ValueError, ArithmeticError):
        return found[0]


def _integer(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            return _OPERATORS[type(sign)](_integer(left), _integer(right))
    raise ValueError("no whole number")


def _value(text: str) -> Any:
    found = read_yaml(text)
    return text if isinstance(found, Violation) else found


def _filled(value: Any, values: Values) -> Any:
    if not isinstance(value, str) or not (found := _REFERENCE.fullmatch(value)):
        return value
    if found[1] in values and values[found[1]] != value:
        return values[found[1]]
    return _value(found[2]) if found[2] else None
