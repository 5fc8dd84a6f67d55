"""Sanitized text from pods, servers and users: printable, of limited length."""

import re
from typing import Annotated

from pydantic import AfterValidator

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_].*?(?:\x07|\x1b\\|\Z)|[ -~])", re.DOTALL)
"""Terminal escape sequences: control sequences, strings such as titles, and two-character ones."""
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Dead)\b")
"""Pattern of the start of a line that names an exception, as at the end of a traceback."""
MIN_CONTEXT = 40
"""Minimum number of characters of a traceback that are worth showing after its error."""


def printable(text: str) -> str:
    """Return the text without escape sequences, and with other non-printable characters as spaces.

    Newlines and tabs are kept, and carriage returns are removed. Bidirectional overrides and lone
    surrogates are not printable either.
    """
    if text.isprintable():  # most texts are, and a status has many
        return text
    shown = _ESCAPES.sub("", text)
    return "".join(
        each if each.isprintable() or each in "\n\t" else " " for each in shown.replace("\r", "")
    )


def lines(text: str, limit: int) -> str:
    """Return the printable lines of a text, at most `limit` characters in total."""
    shown = printable(text[: 4 * limit])  # limits the processing time
    return "\n".join(line.rstrip() for line in shown.splitlines())[:limit]


def one_line(text: str, limit: int) -> str:
    """Return a text as one printable line of at most `limit` characters."""
    return " ".join(printable(text[: 4 * limit]).split())[:limit]


def error_first(text: str, limit: int) -> str:
    """Return a traceback as one line that starts with the error, at most `limit` characters.

    The error is the last line without indentation that names an exception, else the last line.
    What precedes it follows in parentheses, cut at its start.
    """
    rows = [row.rstrip() for row in printable(text[-4 * limit :]).splitlines() if row.strip()]
    starts = [number for number, row in enumerate(rows) if _EXCEPTION.match(row)]
    start = starts[-1] if starts else max(0, len(rows) - 1)
    error = " ".join(" ".join(rows[start:]).split())[:limit]
    before = " ".join(" ".join(rows[:start]).split())
    remaining = limit - len(error) - len(" (after …)")
    if not before or remaining < MIN_CONTEXT:
        return error
    return f"{error} (after {before if len(before) <= remaining else '…' + before[-remaining:]})"


def _cleaned(limit: int) -> AfterValidator:
    return AfterValidator(lambda text: one_line(text, limit))


ShortText = Annotated[str, _cleaned(256)]
"""Text of at most 256 characters from a pod, sanitized when parsed."""
Message = Annotated[str, _cleaned(1024)]
"""Text of at most 1,024 characters from a pod, sanitized when parsed."""
