"""A killed run ends as an undisturbed one: real Ray, vLLM, FSDP2 and retrieval, 1 rank, FP32."""

from pathlib import Path

import pytest

from local.drill import SAVE_EVERY, Outcome, Run


def best(outcome: Outcome) -> tuple[int, str]:
    return outcome.summary["bestStep"], outcome.summary["bestScore"]


@pytest.mark.timeout(900)
def test_undisturbed_run_learns_saves_exports_and_leaves_no_process(undisturbed: Outcome) -> None:
    summary = undisturbed.summary
    assert summary["phase"] == "Succeeded"
    assert summary["step"] == summary["totalSteps"] == 12
    assert summary["rewardLast"] > 0
    step, score = best(undisturbed)
    assert step % SAVE_EVERY == 0
    assert score.startswith("ValidationReward 0.")
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
    assert best(outcome) == best(undisturbed)
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
    checkpoints = tmp_path / "run" / "checkpoints"
    newest = max(marker.parent for marker in checkpoints.glob("step_*/COMPLETE"))
    shard = next(newest.glob("*.distcp"))
    shard.write_bytes(shard.read_bytes()[:100])
    outcome = run.finish(run.start())
    assert "HeadLost" in outcome.causes
    skipped = [s for a in outcome.summary["attempts"] for s in a["skippedCheckpoints"]]
    assert any(newest.name in s for s in skipped)
    assert outcome.weights == undisturbed.weights
    assert best(outcome) == best(undisturbed)
    assert outcome.left_over == []
