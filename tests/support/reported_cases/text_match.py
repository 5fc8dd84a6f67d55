"""Reported cases about comparing answers and reading a judge's grade."""

from pathlib import Path

from raggrpo_trainer.rewards.text_match import exact_match
from support.reported_cases.case import case

DIFFERENT = [("-5", "5")]


@case("T1", fault="Punctuation that belongs to a number is dropped", inputs=DIFFERENT)
def different_numbers_do_not_match(_folder: Path, given: tuple[str, str]) -> None:
    """Different numbers are not equal."""
    text, answer = given
    assert exact_match(text, [answer]) == 0.0
