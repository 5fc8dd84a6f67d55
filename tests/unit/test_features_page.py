import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [
    f"{kind}{n}"
    for kind, last in (("A", 35), ("B", 32), ("C", 20), ("D", 14), ("E", 14))
    for n in range(1, last + 1)
]


class Line(NamedTuple):
    """One row of the page."""

    row: str
    state: str
    what: str
    shown_by: str

    @property
    def tests(self) -> list[tuple[str, str]]:
        return re.findall(r"`([\w/.]+\.py)::(\w+)`", self.shown_by)


LINES = [
    Line(*(cell.strip() for cell in line.strip("|\n").split("|")))
    for line in (ROOT / "docs" / "features.md").read_text().splitlines()
    if re.match(r"\| [A-E]\d+ \|", line)
]


def test_every_row_of_the_requirements_stands_there_once() -> None:
    assert [line.row for line in LINES] == ROWS


@pytest.mark.parametrize("line", LINES, ids=[line.row for line in LINES])
def test_what_is_said_to_work_is_shown_by_tests_that_exist(line: Line) -> None:
    assert line.state in ("done", "partly", "next")
    assert bool(line.tests) == (line.state != "next")
    assert line.shown_by.count("::") == len(line.tests)
    for file, name in line.tests:
        assert re.search(rf"def {name}\(", (ROOT / "tests" / file).read_text()), f"{file}::{name}"


@pytest.mark.parametrize("line", LINES, ids=[line.row for line in LINES])
def test_what_is_partly_there_says_what_is_missing(line: Line) -> None:
    missing = re.search(
        r"Missing:|next|yet|needs the operator|only installed|no test|has been tried", line.what
    )
    assert bool(missing) == (line.state != "done")
