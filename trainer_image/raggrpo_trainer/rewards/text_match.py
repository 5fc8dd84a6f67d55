"""Compare a text with accepted answers as SQuAD does; pure.

Otherwise than there, CJK is compared character by character, and numbers keep sign and point.
"""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence

# Kana, ideographs and Hangul: scripts that do not (reliably) separate words with spaces.
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
_TOKEN = re.compile(rf"[{_CJK}]|[^\s{_CJK}]+")
_OF_NUMBER = re.compile(r"(?<=\d)[./](?=\d)|(?<![\w.])-(?=\d)")
"""Without them 3.14 would be 314, 1/2 be 12, and -5 be 5."""
_ARTICLE = re.compile(r"\b(a|an|the)\b")


def tokens(text: str) -> list[str]:
    """Return lower-cased words and single CJK characters, without punctuation and articles.

    A text of nothing but these keeps them: "A" may answer a multiple-choice question, and "+" ask
    for an operator.
    """
    text = unicodedata.normalize("NFC", text)  # an accent may be a character of its own
    text = text.lower().replace("\u2212", "-")
    of_numbers = {match.start() for match in _OF_NUMBER.finditer(text)}
    bare = "".join(c for at, c in enumerate(text) if at in of_numbers or not _is_punctuation(c))
    forms = (_ARTICLE.sub(" ", bare), bare, text)
    return next((found for form in forms if (found := _TOKEN.findall(form))), [])


def exact_match(text: str, answers: Sequence[str]) -> float:
    """Return 1.0 if `text` equals an accepted answer after normalisation, else 0.0."""
    found = tokens(text)
    return float(bool(found) and any(found == tokens(answer) for answer in answers))


def f1(text: str, answers: Sequence[str]) -> float:
    """Return the best token F1 of `text` against any accepted answer, 0.0 to 1.0."""
    return max((_f1(tokens(text), tokens(answer)) for answer in answers), default=0.0)


def contains(text: str, answers: Sequence[str]) -> float:
    """Return 1.0 if `text` contains an accepted answer's tokens in sequence, else 0.0."""
    found = _spaced(tokens(text))
    return float(any(_spaced(tokens(answer)) in found for answer in answers if tokens(answer)))


def _f1(found: list[str], wanted: list[str]) -> float:
    common = (Counter(found) & Counter(wanted)).total()
    return 2 * common / (len(found) + len(wanted)) if common else 0.0


def _spaced(words: list[str]) -> str:
    return f" {' '.join(words)} "


def _is_punctuation(character: str) -> bool:
    return character in string.punctuation or unicodedata.category(character).startswith("P")
