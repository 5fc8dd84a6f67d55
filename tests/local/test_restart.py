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
def test_driver_rank_and_engine_killed_and_a_false_success_change_no_parameter(
    undisturbed: Outcome, tmp_path: Path
) -> None:
    run = Run(tmp_path / "run")
    faults = (
        "kill-driver@step=5",
        "kill-rank@save=6:complete@attempt=2",
        "kill-engine@step=8@attempt=3",
        "exit0@step=11@attempt=3",
    )
    outcome = run.finish(run.start(",".join(faults)))
    assert outcome.causes == [
        "ProgramError",
        "TrainerRankLost",
        "RolloutEngineLost",
        "FalseSuccess",
    ]
    assert outcome.weights == undisturbed.weights
    assert outcome.left_over == []


@pytest.mark.timeout(900)
def test_head_and_run_killed_and_the_newest_checkpoint_truncated_change_no_parameter(
    undisturbed: Outcome, tmp_path: Path
) -> None:
    run = Run(tmp_path / "run")
    process = run.start("slow-step@step=5:3")
    run.wait_for(lambda s: s.get("progress", {}).get("step", 0) == 4, "step 4")
    run.victim("head").kill()
    run.wait_for(lambda s: s.get("checkpoint", {}).get("step", 0) >= 9, "the save of step 9")
    process.kill()
    process.wait(60)
    newest = max((tmp_path / "run" / "checkpoints").glob("step_*"))
    shard = next(newest.glob("*.distcp"))
    shard.write_bytes(shard.read_bytes()[:100])
    outcome = run.finish(run.start())
    assert "HeadLost" in outcome.causes
    skipped = [s for a in outcome.summary["attempts"] for s in a["skippedCheckpoints"]]
    assert any(newest.name in s for s in skipped)
    assert outcome.weights == undisturbed.weights
    assert outcome.left_over == []


@pytest.mark.timeout(900)
def test_a_loss_that_is_no_number_a_hang_and_a_damaged_checkpoint_change_no_parameter(
    undisturbed: Outcome, tmp_path: Path
) -> None:
    run = Run(tmp_path / "run")
    faults = (
        "nan@step=5",
        "hang-driver@step=4@attempt=2",
        "corrupt-checkpoint@save=6:retention@attempt=3",
        "kill-driver@step=7@attempt=3",
    )
    deadline = "recovery.deadlines.firstStepSeconds=25"  # else a hang counts after a minute
    outcome = run.finish(run.start(",".join(faults), deadline))
    assert outcome.causes == ["NonFinite", "Stalled", "ProgramError"]
    attempt = {each["number"]: each for each in outcome.summary["attempts"]}
    assert "FirstStep" in attempt[2]["message"]
    logs = tmp_path / "run" / "checkpoints" / "logs" / "attempts"
    stacks = {name: (logs / "2" / f"stacks-{name}.txt").read_text() for name in PROCESSES}
    assert "before_step" in stacks["driver"]
    assert all("Thread" in text for text in stacks.values())
    assert "engines ['attached']" in (logs / "3" / "driver.log").read_text()
    assert attempt[4]["fromStep"] == 3
    assert "step_00000006" in attempt[4]["skippedCheckpoints"][0]
    assert outcome.weights == undisturbed.weights
    assert outcome.left_over == []
