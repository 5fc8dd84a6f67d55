"""Runs with disaggregated engines: two of them on policy, and one step off policy."""

from pathlib import Path
from typing import Any

import pytest

from local.drills.drill import PAUSE_FAULTS, STEPS, Outcome, Run
from raggrpo_api.trainer.history import read_history
from raggrpo_trainer.policy.loss import MISMATCH_TOLERANCE

APART = ("resources.placement=Disaggregated", "resources.rolloutEngines=2")
ONE_OFF = (*APART, "training.offPolicySteps=1")


def history(folder: Path) -> list[dict[str, Any]]:
    return read_history(folder / "checkpoints" / "logs")


@pytest.mark.row("B31")
@pytest.mark.long
@pytest.mark.timeout(600)
def test_disaggregated_run_is_bitwise_equal_to_colocated_run(
    undisturbed: Outcome, tmp_path: Path
) -> None:
    run = Run(tmp_path / "run")
    outcome = run.finish(run.start("", *APART))
    assert outcome.causes == []
    assert outcome.weights == undisturbed.weights
    assert outcome.left_over == []


@pytest.mark.row("B31")
@pytest.mark.timeout(600)
def test_off_policy_run_applies_importance_weights_and_resumes_after_kill(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    process = run.start(f"{PAUSE_FAULTS['between']};slow-step@step=11:4@attempt=2", *ONE_OFF)
    run.wait_for(lambda s: s.get("progress", {}).get("step", 0) == 7, "step 7")
    engines = [p for p in run.processes() if "ray::RolloutActor" in " ".join(p.cmdline())]
    run.victim("driver").kill()
    run.wait_for(lambda s: s.get("progress", {}).get("step", 0) == 10, "step 10")
    run.victim("rank").kill()
    outcome = run.finish(process)

    assert len(engines) == 2
    assert outcome.summary["step"] == STEPS
    assert len(outcome.causes) == 2
    assert outcome.left_over == []
    steps = history(tmp_path / "run")
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    on_policy = {step["step"] for step in steps if step["mismatch_max"] <= MISMATCH_TOLERANCE}
    # The reused ranks were at step 7; the newest checkpoint was of step 9.
    first_steps = {each["fromStep"] + 1 for each in outcome.summary["attempts"]}
    assert first_steps == {1, 8, 10}
    # The first step of an attempt is on policy; later steps may wait for the newest weights.
    assert first_steps <= on_policy
    assert len(on_policy) < STEPS / 2
    weights = {step["step"]: abs(step["importance_mean"] - 1.0) for step in steps}
    assert max(weights[step] for step in on_policy) < 1e-9
    assert max(weights.values()) > 1e-4
