"""A run with hangs, lost processes, NaN and a wrong resume: real Ray, vLLM, FSDP2 and retrieval."""

from pathlib import Path

import pytest

from local.drills.drill import Outcome, Run

PROCESSES = ("driver", "rank-0", "engine-0")
pytestmark = pytest.mark.long


@pytest.mark.row("B8", "B13", "B29")
@pytest.mark.timeout(900)
def test_weights_are_identical_after_hangs_process_losses_nan_and_wrong_resume(
    undisturbed: Outcome, tmp_path: Path
) -> None:
    run = Run(tmp_path / "run")
    faults = (
        "hang-driver@step=1",
        "exit0@step=5@attempt=2",
        "kill-rank@save=6:complete@attempt=3",
        "kill-engine@step=8@attempt=4",
        "nan@step=10@attempt=4",
        "wrong-resume@attempt=5",
        "freeze@step=11@attempt=6",
    )
    deadline = "recovery.deadlines.firstStepSeconds=25"  # default: 60 s
    outcome = run.finish(run.start(",".join(faults), deadline))
    assert outcome.causes == [
        "Stalled",
        "FalseSuccess",
        "TrainerRankLost",
        "RolloutEngineLost",
        "NonFinite",
        "ResumeMismatch",
        "Stalled",
    ]
    assert outcome.weights == undisturbed.weights
    assert outcome.left_over == []
    [hung] = [each for each in outcome.summary["attempts"] if each["number"] == 1]
    assert "FirstStep" in hung["message"]
    attempts = tmp_path / "run" / "checkpoints" / "logs" / "attempts"
    stacks = {name: (attempts / "1" / f"stacks-{name}.txt").read_text() for name in PROCESSES}
    assert "before_step" in stacks["driver"]
    assert all("Thread" in text for text in stacks.values())
    assert "engines by index: ['reused']" in (attempts / "2" / "driver.log").read_text()
