"""Pages about test runs on a cluster: results, seconds, date and machine."""

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

PAGE = """# Tests on a cluster

`make e2e-full` writes this page: all tests of `tests/e2e` on a kind cluster with KubeRay, the
operator installed from its chart, and jobs with FSDP2 ranks, vLLM and retrieval on CPU. Seconds
include setup, such as the start of a job that several tests share.

{date}, {cpus} CPUs: {passed} of {total} passed, {minutes:.0f} minutes.

| file | test | result | s |
|---|---|---|---|
{rows}
"""

DRILL = "drill"
"""Name of the property in which a drill reports its result."""
DRILLS_PAGE = """# Drills on a cluster

`make drills-cluster` writes this page. Each row is a separate job on a kind cluster with KubeRay:
14 steps of at least a second, FSDP2 rank, driver and vLLM in pods, a checkpoint every 4 steps.
After step 5 the test kills, deletes or changes part of the job, or injects a fault into the
trainer. A row passes if the job succeeds at step 14, attempts end with the causes shown, no more
steps are lost than allowed, the exported history has each step once, and two attempts or Ray
clusters of the job never exist at the same time. Lost steps were repeated. The seconds are for the
whole test, including setup.

The cluster has two nodes. The drained node runs head and driver; both move to the other node.

{date}, {cpus} CPUs: {passed} of {total} passed, {minutes:.0f} minutes of tests.

| fault | causes | recovery tiers | lost steps | result | s |
|---|---|---|---|---|---|
{rows}
"""


def page(reports: Iterable[pytest.TestReport]) -> str:
    """Return the page of the tests; a test passes if all its phases pass."""
    seconds, failed = _outcomes(reports)
    rows = []
    for name, duration in seconds.items():
        file, _, test = name.partition("::")
        words = test.removeprefix("test_").replace("_", " ").replace("|", "/")
        rows.append(f"| {Path(file).name} | {words} | {_result(name, failed)} | {duration:.0f} |")
    return _filled(PAGE, seconds, failed, rows)


def drills_page(reports: Sequence[pytest.TestReport]) -> str:
    """Return the page of the drills; a drill without a report has only the name of its test."""
    seconds, failed = _outcomes(reports)
    reported = {each.nodeid: value for each in reports for key, value in each.user_properties}
    rows = []
    for name, duration in seconds.items():
        drill: Any = reported.get(name, {"name": name.partition("::")[2], "ends": [], "lost": "–"})
        causes = ", ".join(cause for cause, _ in drill["ends"])
        tiers = ", ".join(tier for _, tier in drill["ends"][1:]) or "–"
        rows.append(
            f"| {drill['name']} | {causes} | {tiers} | {drill['lost']} | {_result(name, failed)} "
            f"| {duration:.0f} |"
        )
    return _filled(DRILLS_PAGE, seconds, failed, rows)


def _outcomes(reports: Iterable[pytest.TestReport]) -> tuple[dict[str, float], set[str]]:
    """Return the seconds of each test, and the tests that failed in any phase."""
    seconds: dict[str, float] = defaultdict(float)
    failed: set[str] = set()
    for report in reports:
        seconds[report.nodeid] += report.duration
        if not report.passed:
            failed.add(report.nodeid)
    return seconds, failed


def _result(name: str, failed: set[str]) -> str:
    return "**failed**" if name in failed else "passed"


def _filled(text: str, seconds: dict[str, float], failed: set[str], rows: list[str]) -> str:
    return text.format(
        date=datetime.now(UTC).date(),
        cpus=os.cpu_count(),
        passed=len(seconds) - len(failed),
        total=len(seconds),
        minutes=sum(seconds.values()) / 60,
        rows="\n".join(rows),
    )
