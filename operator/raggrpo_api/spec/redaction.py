"""Redaction of values that may be secrets."""

from typing import Any, Final

from raggrpo_api.fields.addresses import without_queries

from .secret_names import is_secret_name
from .secret_values import has_secret

HIDDEN: Final = "(hidden)"


def redacted(value: Any, name: str = "") -> Any:
    """Return a JSON value with possible secrets hidden (by name or text), without URL queries."""
    if value and is_secret_name(name):
        return HIDDEN
    match value:
        case dict():
            return {_text(key): redacted(each, key) for key, each in value.items()}
        case list():
            return [redacted(each) for each in value]
        case str():
            return _text(value)
    return value


def _text(text: str) -> str:
    return HIDDEN if has_secret(text) else without_queries(text)
