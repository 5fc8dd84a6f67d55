"""Compare a text with accepted answers as SQuAD does. Pure.

Differences from SQuAD: CJK text is compared by characters, numbers keep their punctuation, and
full-width characters equal the ordinary ones.
"""

import unicodedata
from collections import Counter
from collections.abc import Sequence
from string import punctuation

import regex as re  # type: ignore[import-untyped]  # has Unicode classes such as \p{Sc}

# Kana, ideographs and Hangul: scripts that do not (reliably) separate words with spaces.
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
_TOKEN = re.compile(rf"[{_CJK}]|[^\s{_CJK}]+")
_LOOKALIKES = str.maketrans(
    dict.fromkeys("\u2010\u2011\u2012\u2013\u2212", "-")  # hyphens, dashes and the minus sign
    | {"\u2236": ":", "\u2044": "/", "\u2215": "/"}  # ratio, fraction and division signs
)
_GROUPED = re.compile(r"(?<![\d.,'])[1-9]\d{0,2}(?:[,'\u2019]\d{2,3})*[,'\u2019]\d{3}(?![,']?\d)")
"""Number with separators of thousands, which are removed: 1,000 is 1000."""
_BEFORE_NUMBER = rf"(?:(?<![\w.])|(?<=[{_CJK}]))"
_POINT = re.compile(rf"{_BEFORE_NUMBER}\.(?=\d)")
"""Leading decimal point: .5 is 0.5."""
_LAST_POINT = re.compile(r"(?<=\d)\.(?=e[-+]?\d)")
"""Decimal point before an exponent, which is removed: 1.e-3 is 1e-3."""
_SIGN = re.compile(r"(?:^|(?<=[=<>(\[{:$] ?))-\s+(?=\p{Sc}?\d)")
"""Sign with spaces at the start of the text or after an operator: - 5 is -5, unlike in 7 - 5."""
_LONG_DASH = re.compile("(?<![\u2014\u2015])[\u2014\u2015](?![\u2014\u2015])")
"""Em dash or horizontal bar, which may be a sign; a double one is a Chinese dash."""
_NUMBER_PUNCTUATION = re.compile(
    r"(?<=\d)[^\w\s]+(?=\d)"  # 3.14, 3:4, 10^-3, 2024-05-01
    rf"|{_BEFORE_NUMBER}-(?=\p{{Sc}}?\d)"  # -5, -$5
    r"|(?<=\de)-(?=\d)"  # 1e-3
    r"|(?<!</?\w{1,20})[<>]=?(?=-?\d)"  # <5, but not the tag in <b>5</b>
)
"""Punctuation of numbers, which is not removed: 3.14 is not 314, and -5 is not 5."""
_ARTICLE = re.compile(r"\b(a|an|the)\b")


def fold_width(text: str) -> str:
    """Return `text` with full-width and half-width characters replaced by the ordinary ones.

    Unlike NFKC, this keeps superscripts and fractions, which would become other numbers.
    """
    return "".join(_ordinary(character) for character in text)


def tokens(text: str) -> list[str]:
    """Return lower-cased words and single CJK characters, without punctuation and articles.

    A text of only punctuation and articles is not reduced: "A" or "+" may be the answer.
    """
    # An accent may be a separate character.
    text = unicodedata.normalize("NFC", fold_width(text)).lower()
    text = _notation(_LONG_DASH.sub("-", text).translate(_LOOKALIKES))
    kept = {i for match in _NUMBER_PUNCTUATION.finditer(text) for i in range(*match.span())}
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


def _notation(text: str) -> str:
    """Return `text` with numbers in one notation: no separators, 0.5 for .5, -5 for - 5."""
    text = _POINT.sub("0.", _GROUPED.sub(_ungrouped, text.strip()))
    return str(_SIGN.sub("-", _LAST_POINT.sub("", text)))


def _is_punctuation(character: str) -> bool:
    return character in punctuation or unicodedata.category(character).startswith("P")


def _ungrouped(number: re.Match[str]) -> str:
    return "".join(filter(str.isdigit, number.group()))


def _ordinary(character: str) -> str:
    kind, _, code = unicodedata.decomposition(character).partition(" ")
    return chr(int(code, 16)) if kind in ("<wide>", "<narrow>", "<small>") else character
