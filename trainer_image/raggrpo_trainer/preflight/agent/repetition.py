"""Compare the prompts of two runs, and find dates in them. Pure."""

import re
from collections.abc import Iterator, Sequence
from datetime import date
from itertools import takewhile
from typing import Final

SHOWN_CHARACTERS = 30
"""Characters around a difference that are shown."""
_KINDS: Final = (
    ("a date or time", re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}|\d{1,2}:\d{2}|\b1[0-9]{9}\b")),
    ("a random id", re.compile(r"(?i)\b(?=[a-z]*[0-9])[0-9a-f]{8,}")),
)
_DATE_FORMATS: Final = (
    "%Y-%m-%d", "%Y/%m/%d", "%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%d-%m-%Y",
    "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y", "%b %d %Y", "%B %d %Y",
)  # fmt: skip


def difference(first: Sequence[str], second: Sequence[str]) -> str:
    """Return what differs between the prompts of two runs, or "".

    Prompts are compared in sorted order, because applications may call in parallel.
    """
    if len(first) != len(second):
        return f"{len(first)} calls, then {len(second)}"
    for one, other in zip(sorted(first), sorted(second), strict=True):
        if one != other:
            excerpts = _excerpts(one, other)
            kind = next((f"{kind}: " for kind, form in _KINDS if form.search(excerpts[0])), "")
            return f"{kind}{excerpts[0]!r}, then {excerpts[1]!r}"
    return ""


def dates(texts: Sequence[str], day: date, data: str) -> Iterator[str]:
    """Yield the forms of a day that texts contain, but not `data`."""
    forms = {day.strftime(form) for form in _DATE_FORMATS}
    forms |= {re.sub(r"\b0(?=\d\b)", "", form) for form in forms}
    for form in sorted(forms, key=len, reverse=True):
        pattern = re.compile(rf"(?<!\d){re.escape(form)}(?!\d)")
        if not pattern.search(data) and any(map(pattern.search, texts)):
            yield form


def _excerpts(one: str, other: str) -> tuple[str, str]:
    """Return the texts around their first difference."""
    equal = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    place = sum(1 for _ in equal)
    shown = slice(max(0, place - SHOWN_CHARACTERS), place + SHOWN_CHARACTERS)
    return one[shown], other[shown]
