"""Interrupted runs match an undisturbed one: real Ray, vLLM, FSDP2 and retrieval, 1 rank, FP32."""

import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from local.drills.drill import MOMENTS, SAVE_EVERY, STEPS, VICTIMS, Outcome, Run, run_drill
from raggrpo_api.trainer.history import read_history
from raggrpo_trainer.progress.driver_process import POD_TERMINATING

LORA = "training.lora.rank=8"


def best(outcome: Outcome) -> tuple[int, str]:
    return outcome.summary["bestStep"], outcome.summary["bestScore"]


@pytest.mark.timeout(900)
def test_uninterrupted_run_saves_exports_and_exits_cleanly(undisturbed: Outcome) -> None:
    summary = undisturbed.summary
    assert summary["phase"] == "Succeeded"
    assert summary["step"] == summary["totalSteps"] == 12
    assert summary["rewardLast"] > 0
    step, score = best(undisturbed)
    assert step % SAVE_EVERY == 0
    assert score.startswith("ValidationReward 0.")
    assert undisturbed.causes == []
    assert undisturbed.left_over == []


@pytest.mark.row("A27", "A33", "B9", "B10", "B29", "G5")
@pytest.mark.timeout(900)
def test_weights_are_identical_after_driver_rank_and_engine_losses(
    undisturbed: Outcome, tmp_path: Path
) -> None:
    run = Run(tmp_path / "run")
    slow = (f"slow-step@step={step}:0.5@attempt=0" for step in range(1, 10))
    faults = (
        "kill-engine@step=9@attempt=4",
        "kill-rank@save=9:complete@attempt=4",
        "exit0@step=11@attempt=5",
    )
    process = run.start(",".join((*slow, *faults)))
    for number, step in enumerate((2, 4, 6), start=1):

        def is_trained(status: dict[str, Any], number: int = number, step: int = step) -> bool:
            newest = (status.get("attempts") or [{}])[0]
            has_started = newest.get("number") == number and newest.get("fromStep") is not None
            return has_started and status["progress"]["step"] >= step

        run.wait_for(is_trained, f"step {step} of attempt {number}")
        time.sleep(random.uniform(0.0, 0.7))
        run.victim("driver").send_signal(POD_TERMINATING if number == 2 else signal.SIGKILL)
    outcome = run.finish(process)

    assert outcome.causes == [
        "ProgramError",
        "Preempted",
        "ProgramError",
        "RolloutEngineLost",
        "TrainerRankLost",
        "FalseSuccess",
    ]
    of_lost_drivers = outcome.summary["attempts"][-3:]
    assert [attempt["lostSteps"] for attempt in of_lost_drivers] == [0] * 3
    steps = [each["step"] for each in read_history(tmp_path / "run" / "checkpoints" / "logs")]
    assert steps == list(range(1, STEPS + 1))
    logs = [log.read_text() for log in (tmp_path / "run").rglob("driver.log")]
    assert sum("resuming from the ranks' state" in log for log in logs) == 3, logs
    assert outcome.weights == undisturbed.weights
    assert best(outcome) == best(undisturbed)
    assert outcome.left_over == []


@pytest.mark.row("B7", "B17")
@pytest.mark.long
@pytest.mark.timeout(900)
def test_weights_are_identical_after_kills_and_truncated_checkpoint(
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
    assert outcome.causes == ["HeadLost"] * 2
    skipped = [s for a in outcome.summary["attempts"] for s in a["skippedCheckpoints"]]
    assert any(newest.name in s for s in skipped)
    assert outcome.weights == undisturbed.weights
    assert best(outcome) == best(undisturbed)
    assert outcome.left_over == []


@pytest.fixture(scope="module")
def undisturbed_adapters(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, bytes]:
    run = Run(tmp_path_factory.mktemp("adapters") / "run")
    return run.finish(run.start("", LORA)), adapter_of(run)


def adapter_of(run: Run) -> bytes:
    folder = run.dir.parent / "checkpoints" / "export" / "adapter"
    return (folder / "adapter_model.safetensors").read_bytes()


@pytest.mark.row("F1")
@pytest.mark.timeout(900)
def test_adapters_are_identical_after_rank_and_driver_losses(
    undisturbed_adapters: tuple[Outcome, bytes], tmp_path: Path
) -> None:
    undisturbed, adapter = undisturbed_adapters
    run = Run(tmp_path / "run")
    faults = "kill-rank@save=6:complete,exit0@step=8@attempt=2"
    outcome = run.finish(run.start(faults, LORA))

    assert undisturbed.causes == []
    assert outcome.causes == ["TrainerRankLost", "FalseSuccess"]
    assert outcome.weights == undisturbed.weights
    assert adapter_of(run) == adapter


@pytest.mark.row("F1")
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("victim", VICTIMS)
def test_adapters_are_identical_after_each_kill(
    undisturbed_adapters: tuple[Outcome, bytes], tmp_path: Path, victim: str, moment: str
) -> None:
    undisturbed, adapter = undisturbed_adapters
    run = Run(tmp_path / "run")
    outcome = run_drill(run, victim, moment, LORA)

    assert outcome.weights == undisturbed.weights
    assert adapter_of(run) == adapter
    assert outcome.left_over == []


@pytest.mark.row("A28")
@pytest.mark.timeout(900)
def test_failed_attempts_lose_no_steps_when_ranks_are_healthy(
    undisturbed: Outcome, tmp_path: Path
) -> None:
    run = Run(tmp_path / "run")
    outcome = run.finish(run.start("oom@step=6,nan@step=9@attempt=2"))

    assert outcome.causes == ["CudaOutOfMemory", "NonFinite"]
    attempts = list(reversed(outcome.summary["attempts"]))
    assert [each["fromStep"] for each in attempts] == [0, 5, 8]
    assert [each["lostSteps"] for each in attempts] == [0] * 3
    assert outcome.weights == undisturbed.weights
    assert outcome.left_over == []
