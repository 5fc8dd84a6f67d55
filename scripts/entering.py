"""Pytest with packages from a copy: which tests enter which function, or chosen tests in order."""

import ast
import importlib
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SEEN = "functions_seen"
SEEN_CODE = """
import os

told = os.open(os.environ.get("FUNCTIONS_SEEN", os.devnull), os.O_WRONLY | os.O_APPEND)
cleared_in = int(os.environ.get("FUNCTIONS_CLEARED_IN", 0))

class Seen(set):
    def add(self, where):
        if where not in self or os.getpid() != cleared_in:
            super().add(where)
            os.write(told, f"{where}\\n".encode())

seen = Seen()
"""
"""Told through a file, as a test's functions may run in another process.

That process may outlive the test, and nobody clears its set: it tells of every call.
"""


def telling(path: str, text: str) -> str:
    """Return the file's text with functions that note when they are entered."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            note = ast.parse(f"__import__('{SEEN}').seen.add('{path}:{node.lineno}')").body
            first = 0 if ast.get_docstring(node) is None else 1
            node.body[first:first] = note
    return ast.unparse(tree)


class Recorder:
    """Pytest plugin: which tests enter which mutated function, in what processor time."""

    def __init__(self, out: Path) -> None:
        self.out, self.told = out, out.with_suffix(".seen")
        self.told.touch()
        os.environ |= {"FUNCTIONS_SEEN": str(self.told), "FUNCTIONS_CLEARED_IN": str(os.getpid())}
        self.entered: defaultdict[str, list[str]] = defaultdict(list)
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        """Note what one test enters, with its fixtures."""
        importlib.import_module(SEEN).seen.clear()
        self.told.write_text("")
        began = sum(os.times()[:4])
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = sum(os.times()[:4]) - began
            seen = self.told.read_text().splitlines()
            for where in {*seen, *(f"{function.split(':')[0]}:0" for function in seen)}:
                self.entered[where].append(item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure."""
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write what was seen."""
        told = {"entered": self.entered, "seconds": self.seconds, "failed": self.failed}
        self.out.write_text(json.dumps(told))


class Chosen:
    """Pytest plugin: these tests and no others, in this order."""

    def __init__(self, tests: list[str]) -> None:
        self.places = {test: place for place, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out and sort."""
        chosen = [item for item in items if item.nodeid in self.places]
        items[:] = sorted(chosen, key=lambda item: self.places[item.nodeid])


def run_tests(base: Path, files: Iterable[str], plugin: Recorder | Chosen) -> int:
    """Run tests of these files against the copy; call it in a fork."""
    paths = [str(base), str(ROOT / "operator"), str(ROOT / "trainer_image"), str(ROOT / "tests")]
    os.environ["PYTHONPATH"] = ":".join(paths)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.path[:0] = paths[:-1]
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not long and not gpu"]
    stop = ["-x", "--timeout", "100"] if isinstance(plugin, Chosen) else []
    return pytest.main([*options, *stop, "--hypothesis-seed=0", *files], plugins=[plugin])
