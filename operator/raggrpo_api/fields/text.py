"""Text from pods, servers and users made safe to show: no control characters, a limited length."""

import re
from typing import Annotated

from pydantic import AfterValidator

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_].*?(?:\x07|\x1b\\|\Z)|[ -~])", re.DOTALL)
"""Terminals' escape sequences: colours and cursor, titles and other strings, single letters."""


def printable(text: str) -> str:
    """Return the text without escape sequences and control characters; line breaks and tabs stay.

    What reorders text (bidirectional overrides) and what cannot be encoded (lone surrogates) goes
    as well.
    """
    shown = _ESCAPES.sub("", text)
    return "".join(
        each if each.isprintable() or each in "\n\t" else " " for each in shown.replace("\r", "")
    )


def lines(text: str, limit: int) -> str:
    """Return printable lines of at most `limit` characters in all."""
    shown = printable(text[: 4 * limit])  # cleaning costs time in proportion
    return "\n".join(line.rstrip() for line in shown.splitlines())[:limit]


def one_line(text: str, limit: int) -> str:
    """Return one printable line of at most `limit` characters."""
    return " ".join(printable(text[: 4 * limit]).split())[:limit]


def _cleaned(limit: int) -> AfterValidator:
    return AfterValidator(lambda text: one_line(text, limit))


ShortText = Annotated[str, _cleaned(256)]
"""A short text from a pod, cleaned and cut on reading."""
Message = Annotated[str, _cleaned(1024)]
"""A longer one."""
