"""The usual names of a result's parts, and which part of an unknown result is most likely meant."""

import math
import re
from collections.abc import Mapping
from typing import Any, Final

TEXT_PATHS = ("text", "contents", "content", "passage", "page_content", "snippet", "document.text",
         "document.contents", "document.content", "node.text", "_source.text", "_source.contents",
         "_source.content", "metadata.text", "payload.text", "body", "document", "$")  # fmt: skip
ID_PATHS = ("id", "_id", "doc_id", "document_id", "chunk_id", "document.id", "node.id",
            "metadata.id", "uuid")  # fmt: skip
SCORE_PATHS = ("score", "_score", "similarity", "relevance", "relevance_score", "rerank_score")
"""The usual names, best first. Never a distance, of which less is better."""

_OTHER: Final = re.compile(
    r"(^|.*_)(ids?|uuid|key|ref|sku|types?|kind|scores?|url|uri|link|href|sources?|path|file|filename"
    r"|hash|lang|language|status|model|date|time)$"
)
"""Names, in snake case, of what is no text to read, however long it is."""
_CAPITAL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_IDENTIFIER: Final = re.compile(r"[A-Za-z0-9_.:/@#-]{0,64}")
NAMED: Final = 1_000_000
"""Counted for a text under a usual name, beside its length."""


def guess_text_path(leaves: Mapping[str, Any], items: str) -> tuple[str, int]:
    """Return the path of the leaf that is most likely the text, and how likely; empty and 0: none.

    `items` leads to the results, for bare texts, whose name is that of their list.
    """
    texts = {
        at: each
        for at, each in leaves.items()
        if isinstance(each, str) and not _OTHER.fullmatch(_last(items if at == "$" else at))
    }
    named = [at for at in TEXT_PATHS if at in texts and at != "$"]
    named += [at for at in texts if _has(at, ("text", "content", "body", "passage"))]
    if named:
        return named[0], NAMED + len(texts[named[0]])
    prose = {at: len(each) for at, each in texts.items() if not _IDENTIFIER.fullmatch(each)}
    return max(prose.items(), key=lambda item: item[1], default=("", 0))


def guess_id_path(leaves: Mapping[str, Any]) -> str:
    """Return the path of the leaf that is named like an id, empty if none is."""
    return _named(leaves, ID_PATHS, ("id", "ref", "key", "sku", "uuid"), (str, int))


def guess_score_path(numbers: Mapping[str, Any]) -> str:
    """Return the path of the number that is named like a score, empty if none is."""
    found = _named(numbers, SCORE_PATHS, ("score", "rel", "sim", "rank_score"), (int, float, str))
    return found or next((at for at in numbers if at.endswith("score[0].value")), "")


def parse_number(value: Any) -> float | None:
    """Return a finite number, which may be written as text, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        read = float(value)
    except (ValueError, OverflowError):
        return None
    return read if math.isfinite(read) else None


def _named(
    leaves: Mapping[str, Any],
    usual: tuple[str, ...],
    parts: tuple[str, ...],
    kinds: type | tuple[type, ...],
) -> str:
    fit = [at for at, each in leaves.items() if isinstance(each, kinds)]
    return next((at for at in [*usual, *fit] if at in fit and (at in usual or _has(at, parts))), "")


def _has(path: str, parts: tuple[str, ...]) -> bool:
    return any(part in path.rpartition(".")[2].lower() for part in parts)


def _last(path: str) -> str:
    """Return a path's last name in snake case."""
    name = re.sub(r"\[[^]]*\]", "", path).rpartition(".")[2]
    return _CAPITAL.sub("_", name).lower()
