"""Fill in a configuration's references: `${data.seed}`, alone, within a text, or in a chain.

The grammar is OmegaConf's (Variable interpolation). Of its resolvers only `oc.select` is followed,
and the default of `oc.env`; what others give depends on where and when verl would have started.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from .overrides import UnknownValue, Values, parse_value

_NODE: Final = re.compile(r"(\.*)([\w@/-]+(?:\.[\w@/-]+)*)")
_RESOLVER: Final = re.compile(r"([\w.]+):(.*)", re.DOTALL)
_OPEN: Final = "???"
"""A field that a configuration wants to be given."""


def resolve_references(values: Values, defaults: Mapping[str, Any]) -> Values:
    """Return the values with all references filled in, NotAtHand where that is impossible.

    `defaults` stand for fields that the values lack.
    """
    filling = _Filling(values, defaults)
    return {name: filling.value(name) for name in values}


class _Failed(Exception):
    """A reference leads nowhere; says why."""


class _Filling:
    def __init__(self, values: Values, defaults: Mapping[str, Any]) -> None:
        self._values, self._defaults = values, defaults
        self._done: Values = {}
        self._above: list[str] = []

    def value(self, name: str) -> Any:
        """Return the value of a field, NotAtHand if its references lead nowhere."""
        if name in self._done:
            return self._done[name]
        raw = self._values[name]
        if isinstance(raw, UnknownValue):
            return raw
        if raw == _OPEN:
            return UnknownValue(_OPEN, "the configuration leaves it to be given")
        if name in self._above:
            circle = [*self._above[self._above.index(name) :], name]
            raise _Failed(f"its references go in a circle: {' → '.join(circle)}")
        self._above.append(name)
        try:
            found = self._filled(raw, name)
        except _Failed as error:
            found = UnknownValue(str(raw), str(error))
        self._above.pop()
        self._done[name] = found
        return found

    def _filled(self, raw: Any, name: str) -> Any:
        if isinstance(raw, list):
            return [self._filled(each, name) for each in raw]
        if not isinstance(raw, str) or "${" not in raw:
            return raw
        parts: list[Any] = []
        at = 0
        while (start := raw.find("${", at)) >= 0:
            end = _end(raw, start)
            if raw[at:start]:
                parts.append(raw[at:start])
            parts.append(self._referenced(raw[start + 2 : end], name))
            at = end + 1
        if raw[at:]:
            parts.append(raw[at:])
        if len(parts) > 1 and None in parts:
            raise _Failed(f"a part of {raw} is null")
        return parts[0] if len(parts) == 1 else "".join(str(each) for each in parts)

    def _referenced(self, inner: str, name: str) -> Any:
        """Return what `${inner}` stands for in the field `name`."""
        inner = str(self._filled(inner, name)).strip()
        if found := _NODE.fullmatch(inner):
            return self._node(_absolute(found, name), inner)
        if not (found := _RESOLVER.fullmatch(inner)):
            raise _Failed(f"${{{inner}}} is not understood")
        resolver, (first, comma, default) = found[1], found[2].partition(",")
        if resolver == "oc.select" and (node := _NODE.fullmatch(first.strip())):
            try:
                return self._node(_absolute(node, name), inner)
            except _Failed:
                return parse_value(default.strip()) if comma else None
        if resolver == "oc.env" and comma:
            return parse_value(default.strip())
        raise _Failed(f"${{{inner}}} is known only where verl runs")

    def _node(self, name: str, inner: str) -> Any:
        if name in self._values:
            found = self.value(name)
        elif name in self._defaults:
            found = self._defaults[name]
        elif any(each.startswith(f"{name}.") for each in self._values):
            raise _Failed(f"${{{inner}}} is a block of fields")
        else:
            raise _Failed(f"${{{inner}}} is not in the configuration")
        if isinstance(found, UnknownValue):
            raise _Failed(found.reason)
        return found


def _end(text: str, start: int) -> int:
    """Return where the bracket that opens at `start` closes."""
    depth = 0
    for at in range(start + 1, len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if depth == 0:
            return at
    raise _Failed(f"{text[start:]} has no closing bracket")


def _absolute(found: "re.Match[str]", name: str) -> str:
    """Return a path from the root: `${.a}` is beside the field, `${..a}` beside its block."""
    parts = name.split(".")[: -len(found[1])]
    return ".".join([*parts, found[2]])
