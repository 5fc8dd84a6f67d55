"""Resolution of references such as `${data.seed}`, which may be nested or within a string.

The grammar is OmegaConf's (Variable interpolation). Supported resolvers are `oc.select` and
`oc.env` with a default; the results of other resolvers depend on the run of verl.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from .overrides import UnknownValue, Unreadable, Values, parse_value

_NODE: Final = re.compile(r"(\.*)([\w@/-]+(?:\.[\w@/-]+)*)")
_BRACE: Final = re.compile("[{}]")
_RESOLVER_CALL: Final = re.compile(r"([\w.]+):(.*)", re.DOTALL)
_MAX_CHARACTERS: Final = 1_000_000
"""Maximum characters of all referenced values together, as often as they are referenced."""
_MAX_DEPTH: Final = 100
"""Maximum references within and behind each other."""
_MAX_SHOWN_NAMES: Final = 3
"""Maximum fields of a cycle that a message names."""
_MISSING: Final = "???"
"""OmegaConf's placeholder for a mandatory value that is not specified."""


def resolve_references(values: Values, defaults: Mapping[str, Any]) -> Values:
    """Return the values with references resolved; an unresolvable value becomes UnknownValue.

    `defaults` are used for fields without a value.
    """
    resolver = _Resolver(values, defaults)
    return {name: resolver.value(name) for name in values}


class _Unresolved(Exception):
    """Raised if a reference cannot be resolved."""


class _Resolver:
    def __init__(self, values: Values, defaults: Mapping[str, Any]) -> None:
        self._values, self._defaults = values, defaults
        self._done: Values = {}
        self._above: list[str] = []
        self._characters = 0
        self._blocks = {name[:at] for name in values for at, char in enumerate(name) if char == "."}

    def value(self, name: str) -> Any:
        """Return the resolved value of a field, or UnknownValue if a reference is unresolvable."""
        if name in self._done:
            return self._done[name]
        raw = self._values[name]
        if isinstance(raw, UnknownValue):
            return raw
        if raw == _MISSING:
            return UnknownValue(_MISSING, "the configuration requires a value")
        if name in self._above:
            cycle = self._above[self._above.index(name) :]
            more = ["…"] if len(cycle) > _MAX_SHOWN_NAMES else []
            cycle = [*cycle[:_MAX_SHOWN_NAMES], *more, name]
            raise _Unresolved(f"its references are circular: {' → '.join(cycle)}")
        if len(self._above) >= _MAX_DEPTH:
            raise _Unresolved(f"more than {_MAX_DEPTH} references follow each other")
        self._above.append(name)
        try:
            value = self._resolve(raw, name)
        except _Unresolved as error:
            value = UnknownValue(str(raw), str(error))
        self._above.pop()
        self._done[name] = value
        return value

    def _resolve(self, raw: Any, name: str) -> Any:
        if isinstance(raw, list):
            return [self._resolve(each, name) for each in raw]
        if not isinstance(raw, str) or "${" not in raw:
            return raw
        parts: list[Any] = []
        at = 0
        while (start := raw.find("${", at)) >= 0:
            end = _end(raw, start)
            if raw[at:start]:
                parts.append(raw[at:start])
            parts.append(self._counted(self._reference(raw[start + 2 : end], name)))
            at = end + 1
        if raw[at:]:
            parts.append(raw[at:])
        if len(parts) > 1 and None in parts:
            raise _Unresolved(f"a reference in {raw} is null")
        if len(parts) == 1:
            return parts[0]
        return "".join(str(each) for each in parts)

    def _counted(self, value: Any) -> Any:
        """Return a referenced value and count it. Raises Unreadable beyond the limit."""
        self._characters += len(str(value)) + 1
        if self._characters > _MAX_CHARACTERS:
            raise Unreadable(f"its references expand to more than {_MAX_CHARACTERS} characters")
        return value

    def _reference(self, inner: str, name: str) -> Any:
        """Return the value of `${inner}` in the field `name`."""
        if inner.count("${") > _MAX_DEPTH:
            raise _Unresolved(f"it has more than {_MAX_DEPTH} references in a reference")
        inner = str(self._resolve(inner, name)).strip()
        if match := _NODE.fullmatch(inner):
            return self._node(_absolute(match, name), inner)
        if not (match := _RESOLVER_CALL.fullmatch(inner)):
            raise _Unresolved(f"${{{inner}}} is not supported")
        resolver, (first, comma, default) = match[1], match[2].partition(",")
        if resolver == "oc.select" and (node := _NODE.fullmatch(first.strip())):
            try:
                return self._node(_absolute(node, name), inner)
            except _Unresolved:
                return parse_value(default.strip()) if comma else None
        if resolver == "oc.env" and comma:
            return parse_value(default.strip())
        raise _Unresolved(f"${{{inner}}} is known only while verl runs")

    def _node(self, name: str, inner: str) -> Any:
        if name in self._values:
            value = self.value(name)
        elif name in self._defaults:
            value = self._defaults[name]
        elif name in self._blocks:
            raise _Unresolved(f"${{{inner}}} is a block of fields")
        else:
            raise _Unresolved(f"${{{inner}}} is not in the configuration")
        if isinstance(value, UnknownValue):
            raise _Unresolved(value.reason)
        return value


def _end(text: str, start: int) -> int:
    """Return the position of the brace that closes the reference at `start`."""
    depth = 0
    for brace in _BRACE.finditer(text, start + 1):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return brace.start()
    raise _Unresolved(f"{text[start:]} has no closing bracket")


def _absolute(match: "re.Match[str]", name: str) -> str:
    """Return a path from the root: `${.a}` is a sibling of the field, `${..a}` of its parent."""
    parts = name.split(".")[: -len(match[1])]
    return ".".join([*parts, match[2]])
