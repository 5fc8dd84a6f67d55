"""Compare a text with accepted answers as SQuAD does. Pure.

Differences from SQuAD: CJK text is compared by characters, and numbers keep sign and decimal point.
"""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence

# Kana, ideographs and Hangul: scripts that do not (reliably) separate words with spaces.
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
_TOKEN = re.compile(rf"[{_CJK}]|[^\s{_CJK}]+")
_NUMBER_PUNCTUATION = re.compile(r"(?<=\d)[./](?=\d)|(?<![\w.])-(?=\d)")
"""Punctuation of numbers, which is not removed: 3.14 is not 314, and -5 is not 5."""
_ARTICLE = re.compile(r"\b(a|an|the)\b")


def tokens(text: str) -> list[str]:
    """Return lower-cased words and single CJK characters, without punctuation and articles.

    A text of only punctuation and articles is not reduced: "A" or "+" may be the answer.
    """
    text = unicodedata.normalize("NFC", text)  # an accent may be a separate character
    text = text.lower().replace("\u2212", "-")
    kept = {match.start() for match in _NUMBER_PUNCTUATION.finditer(text)}
    bare = "".join(c for i, c in enumerate(text) if i in kept or not _is_punctuation(c))
    variants = (_ARTICLE.sub(" ", bare), bare, text)
    return next((words for variant in variants if (words := _TOKEN.findall(variant))), [])


def exact_match(text: str, answers: Sequence[str]) -> float:
    """Return 1.0 if `text` equals an accepted answer after normalization, else 0.0."""
    words = tokens(text)
    return float(bool(words) and any(words == tokens(answer) for answer in answers))


def f1(text: str, answers: Sequence[str]) -> float:
    """Return the best token F1 of `text` against any accepted answer, 0.0 to 1.0."""
    return max((_f1(tokens(text), tokens(answer)) for answer in answers), default=0.0)


def contains(text: str, answers: Sequence[str]) -> float:
    """Return 1.0 if `text` contains an accepted answer's tokens in sequence, else 0.0."""
    joined = _joined(tokens(text))
    return float(any(_joined(tokens(answer)) in joined for answer in answers if tokens(answer)))


def _f1(predicted: list[str], expected: list[str]) -> float:
    common = (Counter(predicted) & Counter(expected)).total()
    return 2 * common / (len(predicted) + len(expected)) if common else 0.0


def _joined(words: list[str]) -> str:
    return f" {' '.join(words)} "


def _is_punctuation(character: str) -> bool:
    return character in string.punctuation or unicodedata.category(character).startswith("P")
