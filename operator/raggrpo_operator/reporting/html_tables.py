"""HTML tables of the report. All text is escaped."""

from collections.abc import Sequence
from html import escape
from typing import Any

from .charts import number


def table(title: str, titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table with right-aligned numbers, or "" if there are no rows."""
    if not rows:
        return ""
    is_numeric = [any(isinstance(row[i], int | float) for row in rows) for i in range(len(titles))]
    css = [' class="n"' if numeric else "" for numeric in is_numeric]
    header = "".join(f"<th{c}>{escape(title)}</th>" for c, title in zip(css, titles, strict=True))
    lines = [
        "".join(f"<td{c}>{escape(cell_text(cell))}</td>" for c, cell in zip(css, row, strict=True))
        for row in rows
    ]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    heading = f"<h2>{escape(title)}</h2>" if title else ""
    return f'{heading}<div class="scroll"><table><tr>{header}</tr>{body}</table></div>'


def collapsible_table(title: str, titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table that is collapsed until the reader clicks its title."""
    content = table("", titles, rows)
    return f"<details><summary><h2>{escape(title)}</h2></summary>{content}</details>"


def cell_text(value: Any) -> str:
    """Return a value as text, or a dash for None."""
    if value is None:
        return "–"
    return number(value) if isinstance(value, float) else str(value)
