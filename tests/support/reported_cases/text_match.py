"""Reported cases about comparing answers and reading a judge's grade."""

from pathlib import Path

import pytest

from raggrpo_api.spec.reward import JudgeSpec
from raggrpo_trainer.call_failures import CallFailed
from raggrpo_trainer.rewards.grades import parse_grade
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
    ("1.e-3", "1.e3"),
    ("—5", "5"),
    ("―5", "5"),
    ("- 5", "5"),
]
EQUAL = [("０.５", "0.5"), ("１２", "12"), ("ＧＤＰ", "GDP"), (".5", "0.5")]
GRADES = [
    ("Grade: 8. Key points: 1.", 8),
    ("The maximum score is 10. I give 7.", 7),
    ("7,5", 7.5),
    ("Score: 8/10", 8),
    ("either 3 or 7", None),
    ("Score: 5 -> revised score: 7", 7),
    ("The first answer deserves 3, the second 9", None),
    ("7½", None),
]


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


@case("T3", fault="The grade is read from a number that is not the grade", inputs=GRADES)
def grade_is_read_from_its_statement(_folder: Path, given: tuple[str, float | None]) -> None:
    """The grade is the number of the statement that gives it."""
    text, grade = given
    spec = JudgeSpec(model="judge", prompt="{completion}")
    reply = {"choices": [{"message": {"content": text}}]}
    if grade is not None:
        assert parse_grade(spec, reply) == grade / spec.highest
        return
    with pytest.raises(CallFailed):
        parse_grade(spec, reply)
