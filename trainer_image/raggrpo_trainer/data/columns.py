"""Find values in a row by path, such as `reward_model.ground_truth` for nested columns. Pure."""

import json
from collections.abc import Iterator, Mapping
from enum import Enum


class Missing(Enum):
    """Type of MISSING, the result for a path that does not exist, as opposed to a null value."""

    MISSING = "missing"


MISSING = Missing.MISSING


def value_at(row: Mapping[str, object], path: str) -> object:
    """Return the value at a path, or MISSING. A column whose name is the path has priority.

    A column may be nested, or contain a JSON object as text, as CSV exports do.
    """
    if path in row:
        return row[path]
    value: object = row
    for name in path.split("."):
        if value is None:
            return None
        fields = _fields(value)
        if name not in fields:
            return MISSING
        value = fields[name]
    return value


def candidate_columns(path: str) -> tuple[str, str]:
    """Return the columns that may contain a path: its full name, and its first component."""
    return path, path.partition(".")[0]


def leaf_paths(value: object, prefix: str = "") -> Iterator[str]:
    """Yield the paths of all values that are not mappings."""
    if not isinstance(value, Mapping) or not value:
        yield prefix
        return
    for name, item in value.items():
        yield from leaf_paths(item, f"{prefix}.{name}" if prefix else str(name))


def _fields(value: object) -> Mapping[str, object]:
    """Return the fields of a mapping, or of a JSON object as text; {} for other values."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, Mapping) else {}
