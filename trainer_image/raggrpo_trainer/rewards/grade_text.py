"""Find the grade in a judge's text: the number of the statement that gives it. Pure.

    "The maximum score is 10. Style score: 3. I give 7."    -> 7
    "either 3 or 7"                                         -> no grade

Statements are ranked: a final grade, then a plain grade, then the grade of an aspect, then any
number. The best rank that occurs decides. It must have a single number, because a wrong reward
would not be noticed in training.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import regex  # type: ignore[import-untyped]  # has lookbehinds of any length

from .text_match import fold_width

# All patterns ignore case.
_NUMBER: Final = (
    r"(?<![a-z\d_.,/])(-?(?:[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?|\d+(?:[.,]\d+)?|\.\d+))"
    r"(?![.,]?[a-z\d_])"
)
_THOUSANDS: Final = regex.compile(r"-?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?")
_SCALED: Final = "\ue000"
"""Private character that replaces "/10" after a number."""
_LABEL: Final = r"(?:grade|score|rating|marks?|verdict|评分|得分|分数|打分)"
_SUBJECT: Final = r"(?:\s(?:for|of)\s(?:this|the|your|its)\s(?:\w+\s)?(?:answer|response|reply))?"
_PUNCTUATION: Final = r"""(?:[\s"'`*_:=>)|\[({]|-\s)*+"""
_TO_NUMBER: Final = (
    rf"{_PUNCTUATION}(?:(?:is|are|of|would be|should be|as|为|是)\b{_PUNCTUATION})?+"
)
_OPENING: Final = (
    r"""[\s*_#>"'`()<\[\\{|-]*+"""
    r"(?:(?:so|thus|hence|therefore|the|my|your|answer's)\s)*+"
)
_REVISED: Final = r"\b(?:revised|updated|corrected|adjusted)"
_CORRECTED_TO: Final = (
    rf"(?:(?:{_REVISED}|\b(?:changed|raised|lowered|reduced|increased))\sto"
    r"|\b(?:actually|rather|correction|make\s(?:it|that)))\W{0,3}(?:an?\s)?"
)
_ONE_OF_SEVERAL: Final = (
    r"\b(?:(?:first|second|third|fourth|other|former|latter)(?:\s(?:answer|response|reply|one))?"
    r"|(?:answer|response|reply|candidate)\s(?:\d|[a-d])|[b-d])\b"
)
"""One of several answers that are graded together."""
_GIVES: Final = (
    r"\b(?:I|I'd|I'll|we)\s(?:(?:would|will|must|can)\s)?(?:give|rate|grade|score|assign|award)\b"
    r"|\b(?:deserves|earns|gets|receives|scores)\b|[我给](?:给|打)?"
)
_FINAL_GRADE: Final = (
    rf"(?:\b(?:final|overall|total|最终|最后|总)\s?(?:{_LABEL}|分)|{_REVISED}(?:\s{_LABEL}|(?=\s?[:=])))"
    rf"{_SUBJECT}{_TO_NUMBER}"
)
_RANKS: Final = tuple(
    regex.compile(pattern, regex.IGNORECASE)
    for pattern in (
        rf"{_FINAL_GRADE}{_NUMBER}",
        rf"^{_OPENING}(?:{_LABEL}|points){_SUBJECT}{_TO_NUMBER}{_NUMBER}"
        rf"|(?:{_GIVES})[^\d.]{{0,80}}?{_NUMBER}"
        rf"|{_ONE_OF_SEVERAL}{_TO_NUMBER}{_NUMBER}(?=\W*$)"
        rf"|{_CORRECTED_TO}{_NUMBER}(?=\W*$)",
        rf"{_NUMBER}{_SCALED}",
        rf"{_LABEL}{_SUBJECT}{_TO_NUMBER}{_NUMBER}",
        _NUMBER,
    )
)
"""Final grades, plain grades, numbers such as 8/10, grades of an aspect, any numbers."""
_ALTERNATIVE: Final = regex.compile(
    rf"[^\d.;]{{0,40}}?(?:\b(?:or|to|and)\b|[-=]>|[-–~→⇒到至或])\s?(?:an?\s)?{_NUMBER}",
    regex.IGNORECASE,
)
"""A second number for the same grade, as in "7 or 8" and "3-5"."""
_WITH_FRACTION: Final = regex.compile(
    r"\d(?:\s?[\u00bc-\u00be\u2150-\u215e]|[\u00b2\u00b3\u00b9\u2070-\u2079]"
    r"|\s(?:1/[234]|2/3|3/4)(?![\d/]))"
)
"""Number with a fraction or an exponent, such as 7\u00bd, 7 1/2 and 7\u00b2, which is not read."""
_BOUND: Final = regex.compile(
    r"\b(?:max(?:imum)?|min(?:imum)?|highest|lowest|possible|scale|ranges?|threshold|passing)\b"
    r"|满分|最高|最低",
    regex.IGNORECASE,
)
"""Words of statements about the scale, whose numbers are not the grade."""
_STATEMENT_END: Final = regex.compile(
    r"(?<!\.)\.++(?=[\s\"'*_)]|$)|[!?;\n。、]|(?<!\bactually),\s"
    r"|\s(?:but|so|whereas)\s",
    regex.IGNORECASE,
)


def grades_in(text: str, lowest: float, highest: float) -> Sequence[float]:
    """Return the distinct numbers of the best-ranked statements; one is the grade, none is absent.

    `lowest` and `highest` are the bounds of the scale, which texts often repeat ("8/10", "(0-10)").
    """
    if _WITH_FRACTION.search(text):
        return []
    statements = _STATEMENT_END.split(_plain(text, lowest, highest))
    relevant = [each for each in statements if not _BOUND.search(each)]
    for rank in _RANKS:
        numbers = [number for each in relevant for number in _numbers(rank, each)]
        if numbers:
            return list(dict.fromkeys(numbers))
    return []


def _numbers(rank: "regex.Pattern[str]", statement: str) -> Iterator[float]:
    for match in rank.finditer(statement):
        yield _value(next(filter(None, match.groups())))
        if second := _ALTERNATIVE.match(statement, match.end()):
            yield _value(second.group(1))


def _value(number: str) -> float:
    """Return a number with separators of thousands or a decimal comma as float."""
    is_grouped = _THOUSANDS.fullmatch(number)
    return float(number.replace(",", "" if is_grouped else "."))


def _plain(text: str, lowest: float, highest: float) -> str:
    """Return `text` with single spaces and without the scale.

    "8/10" becomes "8" with _SCALED; "(0-10)", "90 %" and "4 of 5" are removed.
    """
    text = fold_width(text.replace("，", ", "))
    top = rf"{regex.escape(f'{highest:g}')}(?:\.0+)?(?![.,]?\d)"
    bottom = "|".join(regex.escape(f"{each:g}") for each in sorted({lowest, 0.0, 1.0}))
    scale = r"(?:\b(?:on )?(?:an? |the )?(?:scale (?:of |from |between )?)?)?"
    per = r"\s?(?:/|\b(?:out )?of)\s?(?:(?:an? )?(?:possible |(?:maximum |total )(?:of )?))?"
    for pattern, replacement in (
        (r"(?<![^\S\n])[^\S\n]*+\n\s*+", "\n"),
        (r"[^\S\n]+", " "),
        (r"(?<=\d)\s?分", ""),
        (rf"{scale}(?<![a-z\d.,])(?:{bottom})\s?(?:to|and|[-–~到至])\s?{top}(?: scale)?", ""),
        (rf"{scale}{top}[- ]point scale", ""),
        (rf"\bnot (?:an? )?{_NUMBER}", ""),
        (rf"(?<=\d){per}{top}", _SCALED),
        (rf"\bout of {top}", ""),
        (rf"{_NUMBER}{per}\d+(?:\.\d+)?", ""),
        (r"%" if highest == 100 else rf"{_NUMBER}\s?%", ""),
    ):
        text = regex.sub(pattern, replacement, text, flags=regex.IGNORECASE)
    return str(text)
