"""Default paths of text, id and score in a result, and guesses for results without these paths."""

import math
import re
from collections.abc import Mapping
from typing import Any, Final

TEXT_PATHS = ("text", "contents", "content", "passage", "page_content", "snippet", "document.text",
         "document.contents", "document.content", "node.text", "_source.text", "_source.contents",
         "_source.content", "metadata.text", "payload.text", "body", "document", "$")  # fmt: skip
OWN_ID_PATHS = ("id", "_id")
CHUNK_ID_PATHS = ("chunk_id", "chunkId", "passage_id", "document.chunk_id", "node.chunk_id",
            "metadata.chunk_id", "document.metadata.chunk_id", "_source.chunk_id",
            "payload.chunk_id")  # fmt: skip
DOCUMENT_ID_PATHS = ("doc_id", "docId", "document_id", "document.id", "document.doc_id", "node.id",
            "metadata.id", "metadata.doc_id", "document.metadata.doc_id", "_source.doc_id",
            "payload.doc_id", "uuid")  # fmt: skip
ID_PATHS = (*OWN_ID_PATHS, *CHUNK_ID_PATHS, *DOCUMENT_ID_PATHS)
SCORE_PATHS = ("score", "_score", "similarity", "relevance", "relevance_score", "rerank_score")
"""Default paths, most specific first; distances are excluded, because smaller is better."""

_NOT_TEXT: Final = re.compile(
    r"(^|.*_)(ids?|uuid|key|ref|sku|types?|kind|scores?|url|uri|link|href|sources?|path|file|filename"
    r"|hash|lang|language|status|model|date|time)$"
)
"""Pattern of snake-case names whose values are not readable text, even if they are long."""
_CAPITAL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_IDENTIFIER: Final = re.compile(r"[A-Za-z0-9_.:/@#-]{0,64}")
NAME_BONUS: Final = 1_000_000
"""Weight of a text with a default name, in addition to the length of the text."""


def guess_text_path(leaves: Mapping[str, Any], items: str) -> tuple[str, int]:
    """Return the path of the leaf most likely to be the text, and its weight, or else ("", 0).

    The name of a result that is a bare text is the last component of `items`, the list's path.
    """
    texts = {
        at: each
        for at, each in leaves.items()
        if isinstance(each, str) and not _NOT_TEXT.fullmatch(_last(items if at == "$" else at))
    }
    named = [at for at in TEXT_PATHS if at in texts and at != "$"]
    named += [at for at in texts if _has(at, ("text", "content", "body", "passage"))]
    if named:
        return named[0], NAME_BONUS + len(texts[named[0]])
    prose = {at: len(each) for at, each in texts.items() if not _IDENTIFIER.fullmatch(each)}
    return max(prose.items(), key=lambda item: item[1], default=("", 0))


def guess_id_path(leaves: Mapping[str, Any]) -> str:
    """Return the path of a leaf whose name indicates an id, or "" if there is none."""
    return _named(leaves, ID_PATHS, ("id", "ref", "key", "sku", "uuid"), (str, int))


def guess_score_path(numbers: Mapping[str, Any]) -> str:
    """Return the path of a number whose name indicates a score, or "" if there is none."""
    path = _named(numbers, SCORE_PATHS, ("score", "rel", "sim", "rank_score"), (int, float, str))
    return path or next((at for at in numbers if at.endswith("score[0].value")), "")


def parse_number(value: Any) -> float | None:
    """Return `value` as a finite float; None for other types and for non-numeric text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        parsed = float(value)
    except (ValueError, OverflowError):
        return None
    return parsed if math.isfinite(parsed) else None


def _named(
    leaves: Mapping[str, Any],
    defaults: tuple[str, ...],
    fragments: tuple[str, ...],
    kinds: type | tuple[type, ...],
) -> str:
    """Return a default path, else the path of a leaf whose name contains one of `fragments`."""
    candidates = [path for path, leaf in leaves.items() if isinstance(leaf, kinds)]
    named = [path for path in defaults if path in candidates]
    named += [path for path in candidates if _has(path, fragments)]
    return next(iter(named), "")


def _has(path: str, fragments: tuple[str, ...]) -> bool:
    return any(fragment in path.rpartition(".")[2].lower() for fragment in fragments)


def _last(path: str) -> str:
    """Return the last name of a path in snake case."""
    name = re.sub(r"\[[^]]*\]", "", path).rpartition(".")[2]
    return _CAPITAL.sub("_", name).lower()
