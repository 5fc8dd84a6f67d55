"""A killed run ends as an undisturbed one: real Ray, vLLM, FSDP2 and retrieval, 1 rank, FP32."""

import re
from pathlib import Path

import pytest

from local.drill import Outcome, Run, strike


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    run = Run(tmp_path_factory.mktemp("drill") / "undisturbed")
    return run.finish(run.start())


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


@pytest.mark.timeout(1500)
def test_a_job_is_interrupted_completes_goes_on_and_keeps_its_folder_to_itself(
    undisturbed: Outcome, tmp_path: Path
) -> None:
    run = Run(tmp_path / "run")
    outcome = strike(run, "ctrl-c", "between")
    assert outcome.causes == ["Suspended"]
    assert outcome.summary["attempts"][-1]["lostSteps"] == 0
    assert outcome.weights == undisturbed.weights

    again = run.finish(run.start())
    assert "is complete" in run.log()
    assert len(again.summary["attempts"]) == len(outcome.summary["attempts"])

    # A raised target trains on; a resume at the wrong step ends that attempt.
    more = "spec.training.totalSteps=14"
    raised = run.finish(run.start("wrong-resume@attempt=3", more))
    assert raised.causes == ["Suspended", "ResumeMismatch"]
    assert raised.summary["step"] == 14

    # Two ranks take over the checkpoint of one; meanwhile nobody else may have the folder.
    wider = ("spec.training.totalSteps=18", "spec.resources.ranks=2")
    process = run.start("slow-step@step=17:20@attempt=5", *wider)
    run.wait_for(lambda s: s.get("progress", {}).get("step", 0) >= 16, "step 16")
    assert "is in use by job drill" in run.refused(tmp_path / "other")
    resharded = run.finish(process)
    assert resharded.summary["step"] == 18
    assert resharded.causes == ["Suspended", "ResumeMismatch"]

    # Another configuration is told from the job folder and from the checkpoint itself.
    for job_folder in (run.dir, tmp_path / "other"):
        said = run.refused(job_folder, *wider, "spec.training.seed=5")
        assert re.search(r"training\.seed.*0.*5", said), said


@pytest.mark.timeout(120)
def test_a_retrieval_service_that_is_down_fails_the_preflight_with_its_name(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    assert "kb" in run.refused(tmp_path / "job", endpoint="kb=http://127.0.0.1:9/retrieve")
    assert run.left_over() == []
