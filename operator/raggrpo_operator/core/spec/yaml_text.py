"""YAML parsing that is compatible with kubectl."""

import re
from typing import Any, Final

import yaml

from raggrpo_api.secrets.redaction import redacted_words

from .violation import Reason, Violation

MAX_SIZE: Final = 1_000_000
"""Maximum characters of a document after expansion of aliases, with VALUE_SIZE for each value."""
VALUE_SIZE: Final = 25
_TAG: Final = "tag:yaml.org,2002:"
_INTEGER: Final = re.compile(
    r"(?=.{1,100}$)[-+]?(?:0b[01][01_]*|0x[0-9a-fA-F][0-9a-fA-F_]*|0[0-7_]*|[1-9][0-9_]*)$"
)
_FLOAT: Final = re.compile(
    r"(?=.{1,100}$)(?:[-+]?(?:(?:\.[0-9]|[0-9][0-9_]*\.)[0-9_]*(?:[eE][-+]?[0-9]+)?"
    r"|[0-9]+[eE][-+]?[0-9]+|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN))$"
)
"""Longer numbers are read as text, which no numeric field accepts."""


class _Loader(yaml.SafeLoader):
    """YAML loader that reads scalars like kubectl: `1e-6` is a number, 1:30 and a date are text.

    It rejects duplicate keys, tags other than !!str and documents that expand beyond MAX_SIZE.
    """

    yaml_implicit_resolvers: dict[str, list[Any]] = {}

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._size = 0
        self._sizes: dict[str, int] = {}
        """Expanded size by anchor."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Return the next node. Raises an error for tags and beyond MAX_SIZE."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        before = self._size
        node: yaml.Node | None = super().compose_node(parent, index)
        anchor: str = event.anchor or ""
        if isinstance(event, yaml.AliasEvent):
            if anchor not in self._sizes:
                raise _error(f"alias {anchor[:60]!r} contains itself", event)
            self._size += self._sizes[anchor]
        else:
            if event.tag not in (None, "!", f"{_TAG}str"):
                raise _error(f"tag {event.tag[:60]!r} is not supported", event)
            self._size += VALUE_SIZE
            if isinstance(event, yaml.ScalarEvent):
                self._size += len(event.value.encode())
            self._sizes[anchor] = self._size - before
        if self._size > MAX_SIZE:
            raise _error(f"the values expand to more than {MAX_SIZE} characters", event)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping. Raises an error for duplicate keys, which PyYAML accepts."""
        seen: set[str] = set()
        for key in (pair[0] for pair in node.value):
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen and key.value != "<<":
                    raise _error(f"key {key.value[:60]!r} is specified twice", key)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _error(problem: str, place: Any) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, place.start_mark)


for _characters, _resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items():
    for _name, _pattern in _resolvers:
        if _name in (f"{_TAG}bool", f"{_TAG}null", f"{_TAG}merge"):
            _Loader.add_implicit_resolver(_name, _pattern, [_characters])
_Loader.add_implicit_resolver(f"{_TAG}int", _INTEGER, list("-+0123456789"))
_Loader.add_implicit_resolver(f"{_TAG}float", _FLOAT, list("-+.0123456789"))


def read_yaml(text: str) -> object | Violation:
    """Return the only document in `text`, or a violation with line and column."""
    try:
        document: object = yaml.load(text, _Loader)  # _Loader is a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"(file) line {mark.line + 1}, column {mark.column + 1}" if mark else "(file)"
        problem = redacted_words(error.problem or "the file is not valid YAML")
        return _unreadable(where, problem)
    except RecursionError:
        return _unreadable("(file)", "the file is nested too deeply")
    except (ValueError, OverflowError) as error:  # an escape that is not a character
        return _unreadable("(file)", redacted_words(f"a value cannot be read: {error}"))
    except yaml.YAMLError as error:
        return _unreadable("(file)", str(error).replace("\n", " "))
    return document


def _unreadable(where: str, problem: str) -> Violation:
    return Violation(
        where, Reason.INVALID_YAML, problem, "fix the YAML; a file must contain one job"
    )
