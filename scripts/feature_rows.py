"""List the tests of each row of docs/features.md: `feature_rows.py [--check] [ROW ...]`.

Tests name their rows with `@pytest.mark.row("B13")`; benchmarks with a module constant
`FEATURE_ROWS = ("G1",)`. The files are parsed, not imported. `--check` exits with code 1 if a row
in state done or partly has no test, or if a marker names a row that the page does not list.
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "features.md"
ROW = re.compile(r"^\| ([A-Z]\d+) \| .* \| (\w+) \|$", flags=re.MULTILINE)
STATES = ("done", "partly", "next")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def row_states(page: str) -> dict[str, str]:
    """Return the state of each row of the page. Raises ValueError if a row is listed twice."""
    rows = ROW.findall(page)
    if len(rows) != len(dict(rows)):
        raise ValueError("docs/features.md lists a row more than once; remove the duplicate")
    return dict(rows)


def marked_rows(source: str) -> Iterator[tuple[str, str]]:
    """Yield (row, test name) for each marked row; the name is "" for rows in `FEATURE_ROWS`."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, FUNCTIONS):
            calls = [each for each in node.decorator_list if isinstance(each, ast.Call)]
            for call in calls:
                if ast.unparse(call.func) == "pytest.mark.row":
                    yield from ((ast.literal_eval(row), node.name) for row in call.args)
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FEATURE_ROWS":
            yield from ((row, "") for row in ast.literal_eval(node.value))


def tests_by_row(folder: Path) -> dict[str, list[str]]:
    """Return the tests of each row as `tests/file.py::test_name`, or the file for a benchmark."""
    tests: dict[str, list[str]] = {}
    for file in sorted(folder.rglob("*.py")):
        for row, name in marked_rows(file.read_text(encoding="utf-8")):
            test = str(file.relative_to(folder.parent)) + (f"::{name}" if name else "")
            tests.setdefault(row, []).append(test)
    return tests


def problems(states: Mapping[str, str], tests: Mapping[str, list[str]]) -> list[str]:
    """Return one line for each contradiction between the page and the markers."""
    unknown = [
        f"{row}: not in {PAGE.name}, but named by {', '.join(tests[row])}"
        for row in tests
        if row not in states
    ]
    wrong = [
        f"{row}: unknown state {state!r}" for row, state in states.items() if state not in STATES
    ]
    untested = [
        f"{row}: {state}, but no test names it"
        for row, state in states.items()
        if state in ("done", "partly") and row not in tests
    ]
    return unknown + wrong + untested


def main() -> None:
    """Print the requested rows with their tests; with --check, compare page and markers."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help="rows to print (default: all)")
    parser.add_argument("--check", action="store_true", help="compare markers with the page")
    options = parser.parse_args()
    states = row_states(PAGE.read_text(encoding="utf-8"))
    tests = tests_by_row(ROOT / "tests")
    if options.check:
        if contradictions := problems(states, tests):
            sys.exit("\n".join(contradictions))
        return
    for row in options.rows or states:
        print(f"{row} ({states.get(row, 'not on the page')})")
        for test in tests.get(row, []):
            print(f"  {test}")


if __name__ == "__main__":
    main()
