"""docs/features.md and the row markers of the tests agree."""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))

import feature_rows

PAGE = feature_rows.PAGE.read_text(encoding="utf-8")


def test_feature_page_and_test_markers_agree() -> None:
    tests = feature_rows.tests_by_row(feature_rows.ROOT / "tests")

    assert feature_rows.problems(feature_rows.row_states(PAGE), tests) == []


def test_unfinished_feature_rows_state_missing_parts() -> None:
    rows = re.findall(r"^\| ([A-Z]\d+) \| (.*) \| (\w+) \|$", PAGE, flags=re.MULTILINE)
    names_gap = {row: bool(re.search(r"Missing:|\bnext\b|\byet\b", text)) for row, text, _ in rows}

    assert names_gap == {row: state != "done" for row, _, state in rows}


def test_feature_markers_of_functions_and_benchmarks_are_found() -> None:
    source = """
FEATURE_ROWS = ("G1", "G2")
@pytest.mark.row("A1", "A2")
async def test_one() -> None: ...
@pytest.mark.long
def test_two() -> None: ...
"""
    assert list(feature_rows.marked_rows(source)) == [
        ("A1", "test_one"), ("A2", "test_one"), ("G1", ""), ("G2", ""),
    ]  # fmt: skip


def test_untested_and_unknown_feature_rows_are_reported_as_problems() -> None:
    states = {"A1": "done", "A2": "partly", "A3": "next", "A4": "soon"}

    assert feature_rows.problems(states, {"A1": ["tests/a.py::test_a"], "B1": ["tests/b.py"]}) == [
        "B1: not in features.md, but named by tests/b.py",
        "A4: unknown state 'soon'",
        "A2: partly, but no test names it",
    ]
