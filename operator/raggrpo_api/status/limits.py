"""Limits of a stored status, which others may have changed."""

from typing import Final

from raggrpo_api.limits import MAX_STATUS_TEXT

MAX_INTEGER: Final = (1 << 63) - 1
"""Maximum absolute value of an integer, as in the API server."""


def require_within_limits(wire: object) -> None:
    """Raise ValueError if a status in JSON has too much text or too large integers."""
    characters = 0
    pending = [wire]
    while pending:
        value = pending.pop()
        # A status has thousands of values: `match` takes twice the time.
        if isinstance(value, str):
            characters += len(value)
        elif isinstance(value, dict):
            pending += value
            pending += value.values()
        elif isinstance(value, list):
            pending += value
        elif isinstance(value, int) and abs(value) > MAX_INTEGER:
            raise ValueError("it has an integer that is not a 64-bit integer")
    if characters > MAX_STATUS_TEXT:
        raise ValueError(f"it has more than {MAX_STATUS_TEXT:,} characters")
