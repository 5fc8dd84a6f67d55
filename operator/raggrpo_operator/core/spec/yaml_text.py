"""YAML parsing that is compatible with kubectl."""

import re
from typing import Any

import yaml

from .violation import Reason, Violation


class _Loader(yaml.SafeLoader):
    """YAML loader that parses `1e-6` as a number and rejects duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping. Raises an error for duplicate keys, which PyYAML accepts."""
        seen: set[str] = set()
        for key in (pair[0] for pair in node.value):
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen and key.value != "<<":
                    problem = f"key {key.value!r} is specified twice"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def read_yaml(text: str) -> object | Violation:
    """Return the only document in `text`, or a violation with line and column."""
    try:
        document: object = yaml.load(text, _Loader)  # _Loader is a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"(file) line {mark.line + 1}, column {mark.column + 1}" if mark else "(file)"
        return _unreadable(where, error.problem or "the file is not valid YAML")
    except RecursionError:
        return _unreadable("(file)", "the file is nested too deeply")
    except ValueError as error:  # PyYAML does not wrap errors of a huge integer or a wrong date
        return _unreadable("(file)", f"a value cannot be read: {error}")
    except yaml.YAMLError as error:
        return _unreadable("(file)", str(error).replace("\n", " "))
    return document


def _unreadable(where: str, problem: str) -> Violation:
    return Violation(
        where, Reason.INVALID_YAML, problem, "fix the YAML; a file must contain one job"
    )
