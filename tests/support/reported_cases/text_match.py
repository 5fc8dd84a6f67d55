"""Reported cases about comparing answers and reading a judge's grade."""

from pathlib import Path

from raggrpo_trainer.rewards.text_match import exact_match
from support.reported_cases.case import case

DIFFERENT = [
    ("-5", "5"),
    (".5", "5"),
    ("-.5", "5"),
    ("1e-3", "1e3"),
    ("3:4", "34"),
    ("－5", "5"),
    ("3．14", "314"),
]
EQUAL = [("０.５", "0.5"), ("１２", "12"), ("ＧＤＰ", "GDP"), (".5", "0.5")]


@case("T1", fault="Punctuation that belongs to a number is dropped", inputs=DIFFERENT)
def different_numbers_do_not_match(_folder: Path, given: tuple[str, str]) -> None:
    """Different numbers are not equal."""
    text, answer = given
    assert exact_match(text, [answer]) == 0.0


@case("T2", fault="Equal texts of another width or notation do not match", inputs=EQUAL)
def equal_texts_match(_folder: Path, given: tuple[str, str]) -> None:
    """Texts that differ in width or in a leading zero are equal."""
    text, answer = given
    assert exact_match(text, [answer]) == 1.0
