"""Find values in a row by path, such as `reward_model.ground_truth` in nested columns; pure."""

from collections.abc import Iterator, Mapping
from enum import Enum


class Missing(Enum):
    """Tells a path that leads nowhere from one that leads to null."""

    MISSING = "missing"


MISSING = Missing.MISSING


def value_at(row: Mapping[str, object], path: str) -> object:
    """Return the value at a path, or MISSING. A column whose own name has dots comes first."""
    if path in row:
        return row[path]
    value: object = row
    for name in path.split("."):
        if value is None:
            return None
        if not isinstance(value, Mapping) or name not in value:
            return MISSING
        value = value[name]
    return value


def candidate_columns(path: str) -> tuple[str, str]:
    """Return the two columns that may hold a path: its full name, or its first part."""
    return path, path.partition(".")[0]


def leaf_paths(value: object, prefix: str = "") -> Iterator[str]:
    """Yield the paths of all values that are no mappings themselves."""
    if not isinstance(value, Mapping) or not value:
        yield prefix
        return
    for name, item in value.items():
        yield from leaf_paths(item, f"{prefix}.{name}" if prefix else str(name))
