"""A driver that dies costs no step: its ranks outlive it, and the next driver goes on with them."""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from local.drill import STEPS, Outcome, Run
from raggrpo_api.history import read_history
from raggrpo_trainer.progress.driver_process import POD_GOES

OLDER_RANKS = Path(__file__).with_name("older_ranks.py")


def test_ranks_are_continued_only_if_they_prove_what_they_hold() -> None:
    # Ray's sockets need a shorter path than pytest's folders have.
    with tempfile.TemporaryDirectory(prefix="raggrpo-") as folder:
        ended = subprocess.run(
            [sys.executable, str(OLDER_RANKS), folder],
            env={
                **os.environ,
                "RAY_AUTH_MODE": "disabled",
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
            capture_output=True,
            text=True,
            check=False,
        )

    assert ended.returncode == 0, ended.stderr
    came = json.loads(ended.stdout)
    reasons = {
        "another key": "another configuration",
        "one does not answer": "TimeoutError",
        "another parameter": "not what they held",
        "one is in a step": "in the middle of a step",
        "one is lost": "rank-1-1",
    }
    told = {state: came.pop(state) for state in reasons}
    assert all(reason in told[state] for state, reason in reasons.items()), told
    assert came == {
        "marked as left": True,
        "marked once adopted": False,
        "held": True,
        "same checksum": True,
        "driver that was superseded": "SUPERSEDED",
        "other checksum after a step": True,
        "record": True,
        "left over": [],
    }


@pytest.mark.timeout(900)
def test_a_driver_killed_or_ended_for_its_pod_at_any_moment_loses_no_step(
    undisturbed: Outcome, tmp_path: Path
) -> None:
    run = Run(tmp_path / "run")
    slow = (f"slow-step@step={step}:0.5@attempt=0" for step in range(1, STEPS + 1))
    process = run.start(",".join(slow))
    for number, step in enumerate((2, 5, 8), start=1):

        def is_trained(status: dict[str, Any], number: int = number, step: int = step) -> bool:
            newest = (status.get("attempts") or [{}])[0]
            has_begun = newest.get("number") == number and newest.get("fromStep") is not None
            return has_begun and status["progress"]["step"] >= step

        run.wait_for(is_trained, f"step {step} of attempt {number}")
        time.sleep(random.uniform(0.0, 0.7))
        run.victim("driver").send_signal(POD_GOES if number == 2 else signal.SIGKILL)
    outcome = run.finish(process)

    assert outcome.causes == ["ProgramError", "Preempted", "ProgramError"]
    assert [attempt["lostSteps"] for attempt in outcome.summary["attempts"]] == [0] * 4
    steps = [each["step"] for each in read_history(tmp_path / "run" / "checkpoints" / "logs")]
    assert steps == list(range(1, STEPS + 1))
    logs = [log.read_text() for log in (tmp_path / "run").rglob("driver.log")]
    assert sum("the ranks hold step" in log for log in logs) == 3, logs
    assert outcome.weights == undisturbed.weights
    assert outcome.summary["bestScore"] == undisturbed.summary["bestScore"]
    assert outcome.left_over == []
