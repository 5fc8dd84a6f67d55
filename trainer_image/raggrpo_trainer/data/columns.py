"""Find values in a row by path, such as `reward_model.ground_truth` for nested columns. Pure."""

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Final

from raggrpo_api.foreign_files import parse_json

MAX_PATH_CHARACTERS: Final = 100
"""Length of a path in a message."""


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
    """Yield the paths of all values that are not mappings, cut to MAX_PATH_CHARACTERS."""
    if not isinstance(value, Mapping) or not value:
        yield prefix
        return
    for name, item in value.items():
        shown = str(name)[:MAX_PATH_CHARACTERS]
        path = f"{prefix}.{shown}" if prefix else shown
        yield from leaf_paths(item, path[:MAX_PATH_CHARACTERS])


def _fields(value: object) -> Mapping[str, object]:
    """Return the fields of a mapping, or of a JSON object as text; {} for other values."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = parse_json(value)
        except ValueError:
            return {}
    return value if isinstance(value, Mapping) else {}
