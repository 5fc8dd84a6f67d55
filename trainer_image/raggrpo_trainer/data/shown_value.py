"""Show values of rows in messages: only their start, because a text may have 100 MB. Pure."""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Final

MAX_CHARACTERS: Final = 80
MAX_ITEMS: Final = 16
"""Items shown of a list or object; each level below shows half as many."""
MAX_PATHS: Final = 100


def short_repr(value: object, limit: int = MAX_CHARACTERS) -> str:
    """Return the first `limit` characters of a value's representation."""
    return repr(_start(value, MAX_ITEMS))[:limit]


def shown_paths(paths: Iterable[str]) -> str:
    """Return the first MAX_PATHS paths, without duplicates."""
    return ", ".join(dict.fromkeys(islice(paths, MAX_PATHS)))


def _start(value: Any, most: int) -> Any:
    below = max(1, most // 2)
    if isinstance(value, str | bytes):
        return value[:MAX_CHARACTERS]
    if isinstance(value, list):
        return [_start(each, below) for each in value[:most]]
    if isinstance(value, Mapping):
        items = islice(value.items(), most)
        return {_start(name, below): _start(each, below) for name, each in items}
    return value
