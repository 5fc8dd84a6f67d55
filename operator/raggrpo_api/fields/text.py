"""Sanitized text from pods, servers and users: printable, of limited length."""

import re
from typing import Annotated

from pydantic import AfterValidator

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_].*?(?:\x07|\x1b\\|\Z)|[ -~])", re.DOTALL)
"""Terminal escape sequences: control sequences, strings such as titles, and two-character ones."""


def printable(text: str) -> str:
    """Return the text without escape sequences, and with other non-printable characters as spaces.

    Newlines and tabs are kept, and carriage returns are removed. Bidirectional overrides and lone
    surrogates are not printable either.
    """
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


def _cleaned(limit: int) -> AfterValidator:
    return AfterValidator(lambda text: one_line(text, limit))


ShortText = Annotated[str, _cleaned(256)]
"""Text of at most 256 characters from a pod, sanitized when parsed."""
Message = Annotated[str, _cleaned(1024)]
"""Text of at most 1,024 characters from a pod, sanitized when parsed."""
