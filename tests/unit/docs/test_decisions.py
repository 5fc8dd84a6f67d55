"""Decisions are numbered without gaps, have one form and are listed in their index."""

import re
from pathlib import Path

FOLDER = Path(__file__).parents[3] / "docs" / "internals" / "adr"
FILES = sorted(FOLDER.glob("[0-9]*.md"))
FORM = re.compile(
    r"# (\d{4}): .+\n\nStatus: .+ · Date: \d{4}-\d\d-\d\d\n\n"
    r"## Context\n\n.+\n\n## Decision\n\n.+\n\n## Consequences\n\n.+\n",
    flags=re.DOTALL,
)


def test_decisions_are_numbered_without_gaps() -> None:
    assert [int(file.name[:4]) for file in FILES] == list(range(1, len(FILES) + 1))


def test_decisions_have_same_sections() -> None:
    heads = {file.name: FORM.fullmatch(file.read_text(encoding="utf-8")) for file in FILES}

    assert [name for name, head in heads.items() if not head or head[1] != name[:4]] == []


def test_decision_index_lists_each_decision() -> None:
    index = (FOLDER / "README.md").read_text(encoding="utf-8")

    assert re.findall(r"\((\d{4}-[^)]+)\)", index) == [file.name for file in FILES]
