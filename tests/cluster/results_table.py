"""A page about a test run on a cluster: what was shown, on which commit, and its seconds."""

import subprocess
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

PAGE = """# Tests on a real cluster

`make e2e-full` writes this page: all tests of `tests/e2e` on a kind cluster with real KubeRay, the
operator from its chart, and jobs with FSDP2 ranks, vLLM and retrieval on CPU in its pods. Seconds
include what a test waits for first, such as the start of a job that several tests share.

Commit {commit}, {passed} of {total} passed, {minutes:.0f} minutes.

| file | test | result | s |
|---|---|---|---|
{rows}
"""


def page(reports: Iterable[pytest.TestReport], commit: str) -> str:
    """Return the page; a test counts as passed when all of its phases did."""
    seconds: dict[str, float] = defaultdict(float)
    failed: set[str] = set()
    for report in reports:
        seconds[report.nodeid] += report.duration
        if not report.passed:
            failed.add(report.nodeid)
    rows = []
    for name, duration in seconds.items():
        file, _, test = name.partition("::")
        words = test.removeprefix("test_").replace("_", " ").replace("|", "/")
        result = "**failed**" if name in failed else "passed"
        rows.append(f"| {Path(file).name} | {words} | {result} | {duration:.0f} |")
    return PAGE.format(
        commit=commit,
        passed=len(seconds) - len(failed),
        total=len(seconds),
        minutes=sum(seconds.values()) / 60,
        rows="\n".join(rows),
    )


def commit_of(repository: Path) -> str:
    """Return the commit, marked when the sources differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    ended = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True)
    return ended.stdout.strip()
