"""A killed run ends as an undisturbed one: real Ray, vLLM, FSDP2 and retrieval, 1 rank, FP32."""

from pathlib import Path

import pytest

from local.drill import Outcome, Run

PROCESSES = ("driver", "rank-0", "engine-0")


@pytest.mark.timeout(900)
def test_an_undisturbed_run_learns_saves_exports_and_leaves_no_process(
    undisturbed: Outcome,
) -> None:
    summary = undisturbed.summary
    assert summary["phase"] == "Succeeded"
    assert summary["step"] == summary["totalSteps"] == 12
    assert summary["rewardLast"] > 0
    assert undisturbed.causes == []
    assert undisturbed.left_over == []


@pytest.mark.timeout(900)
def test_a_hang_a_false_success_a_rank_an_engine_and_no_number_change_no_parameter(
    undisturbed: Outcome, tmp_path: Path
) -> None:
    run = Run(tmp_path / "run")
    faults = (
        "hang-driver@step=1",
        "exit0@step=5@attempt=2",
        "kill-rank@save=6:complete@attempt=3",
        "kill-engine@step=8@attempt=4",
        "nan@step=10@attempt=4",
    )
    deadline = "recovery.deadlines.firstStepSeconds=25"  # else a hang counts after a minute
    outcome = run.finish(run.start(",".join(faults), deadline))
    assert outcome.causes == [
        "Stalled",
        "FalseSuccess",
        "TrainerRankLost",
        "RolloutEngineLost",
        "NonFinite",
    ]
    assert outcome.weights == undisturbed.weights
    assert outcome.left_over == []
    [hung] = [each for each in outcome.summary["attempts"] if each["number"] == 1]
    assert "FirstStep" in hung["message"]
    attempts = tmp_path / "run" / "checkpoints" / "logs" / "attempts"
    stacks = {name: (attempts / "1" / f"stacks-{name}.txt").read_text() for name in PROCESSES}
    assert "before_step" in stacks["driver"]
    assert all("Thread" in text for text in stacks.values())
    assert "engines ['attached']" in (attempts / "2" / "driver.log").read_text()


@pytest.mark.timeout(900)
def test_head_driver_and_run_killed_and_the_newest_checkpoint_truncated_change_no_parameter(
    undisturbed: Outcome, tmp_path: Path
) -> None:
    run = Run(tmp_path / "run")
    process = run.start("slow-step@step=5:3,kill-driver@step=5@attempt=2")
    run.wait_for(lambda s: s.get("progress", {}).get("step", 0) == 4, "step 4")
    run.victim("head").kill()
    run.wait_for(lambda s: s.get("checkpoint", {}).get("step", 0) >= 9, "the save of step 9")
    process.kill()
    process.wait(60)
    newest = max((tmp_path / "run" / "checkpoints").glob("step_*"))
    shard = next(newest.glob("*.distcp"))
    shard.write_bytes(shard.read_bytes()[:100])
    outcome = run.finish(run.start())
    assert outcome.causes == ["HeadLost", "ProgramError", "HeadLost"]
    skipped = [s for a in outcome.summary["attempts"] for s in a["skippedCheckpoints"]]
    assert any(newest.name in s for s in skipped)
    assert outcome.weights == undisturbed.weights
    assert outcome.left_over == []
