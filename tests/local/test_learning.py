"""What the quickstart's model learns, in real runs: from its passages, and one step off as well."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.quickstart_learning import standard_error

TESTS = Path(__file__).parents[1]
ONE_STEP_OFF = (
    "resources.placement=Disaggregated",
    "resources.rolloutEngines=2",
    "training.offPolicySteps=1",
)
pytestmark = pytest.mark.long


def learnt_with(*changes: str) -> Any:
    """Return the summary of a run; the benchmark ends with 1 if it learnt too little."""
    sets = [part for each in changes for part in ("--set", each)]
    done = subprocess.run(
        [sys.executable, "tests/bench/quickstart_learning.py", "--seeds", "0", "--json", *sets],
        cwd=TESTS.parent,
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])["0"]


@pytest.mark.timeout(900)
def test_exact_match_rises_by_a_quarter_and_one_step_off_the_policy_alike() -> None:
    on_policy, off = learnt_with(), learnt_with(*ONE_STEP_OFF)

    after = [each["exactMatchAfter"] for each in (on_policy, off)]
    assert abs(after[0] - after[1]) <= 3 * standard_error(after)
