"""Run tests against a copy of the packages; optionally record the tests that call each function."""

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
TRACE_MODULE = "called_functions"
TRACE_CODE = """
import os

trace_file = os.open(os.environ.get("CALLED_FUNCTIONS", os.devnull), os.O_WRONLY | os.O_APPEND)
cleared_in = int(os.environ.get("CALLED_FUNCTIONS_CLEARED_IN", 0))

class Called(set):
    def add(self, where):
        if where not in self or os.getpid() != cleared_in:
            super().add(where)
            os.write(trace_file, f"{where}\\n".encode())

called = Called()
"""
"""Source of the trace module, which appends calls to a file to cover child processes, too.

A child process never clears its set and may outlive its test; therefore it writes every call.
"""


def instrumented(path: str, text: str) -> str:
    """Return the source text with a statement in each function that records its calls."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            record = ast.parse(
                f"__import__('{TRACE_MODULE}').called.add('{path}:{node.lineno}')"
            ).body
            first = 0 if ast.get_docstring(node) is None else 1
            node.body[first:first] = record
    return ast.unparse(tree)


class Recorder:
    """Pytest plugin that records the tests that call each function, and their CPU seconds."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.trace_file = out.with_suffix(".trace")
        self.trace_file.touch()
        os.environ["CALLED_FUNCTIONS"] = str(self.trace_file)
        os.environ["CALLED_FUNCTIONS_CLEARED_IN"] = str(os.getpid())
        self.callers: defaultdict[str, list[str]] = defaultdict(list)
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        """Run a test and record the functions that the test and its fixtures call."""
        importlib.import_module(TRACE_MODULE).called.clear()
        self.trace_file.write_text("")
        started = sum(os.times()[:4])
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = sum(os.times()[:4]) - started
            called = self.trace_file.read_text().splitlines()
            for where in {*called, *(f"{function.split(':')[0]}:0" for function in called)}:
                self.callers[where].append(item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a failed test."""
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write the recording to `out` as JSON."""
        recording = {"callers": self.callers, "seconds": self.seconds, "failed": self.failed}
        self.out.write_text(json.dumps(recording))


class Selection:
    """Pytest plugin that runs only the specified tests, in the specified order."""

    def __init__(self, tests: list[str]) -> None:
        self.places = {test: place for place, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Remove the other tests and sort the specified ones."""
        selected = [item for item in items if item.nodeid in self.places]
        items[:] = sorted(selected, key=lambda item: self.places[item.nodeid])


def run_tests(base: Path, files: Iterable[str], plugin: Recorder | Selection) -> int:
    """Run tests of `files` on the copy in `base`; return pytest's exit code. Must run in a fork."""
    paths = [str(base), str(ROOT / "operator"), str(ROOT / "trainer_image"), str(ROOT / "tests")]
    os.environ["PYTHONPATH"] = ":".join(paths)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.path[:0] = paths[:-1]
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not long and not gpu"]
    stop = ["-x", "--timeout", "100"] if isinstance(plugin, Selection) else []
    return pytest.main([*options, *stop, "--hypothesis-seed=0", *files], plugins=[plugin])
