"""A real run is stopped, its job file is changed, and it continues: Ray, vLLM, FSDP2, retrieval."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from local.drills.drill import Outcome, Run
from raggrpo_api.trainer.history import read_events, read_history
from raggrpo_api.trainer.progress import Segment

STOPPED_AFTER, STEPS = 2, 6
BEFORE = {"n": 5, "temperature": 0.7}
AFTER = {"n": 3, "temperature": 0.6}
BATCH_BEFORE, BATCH_AFTER = 8, 4


def change(run: Run, rollout: dict[str, Any], batch: int) -> None:
    """Change the job file as a user does."""
    job = yaml.safe_load(run.job.read_text())
    job["spec"]["rollout"] = rollout
    job["spec"]["data"]["trainBatchSize"] = batch
    job["spec"]["training"] |= {"totalSteps": STEPS, "learningRateSchedule": "Constant"}
    for name in ("decaySteps", "minLearningRateRatio"):
        job["spec"]["training"].pop(name, None)
    run.job.write_text(yaml.safe_dump(job))


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Outcome, int]:
    """Return a finished run that was stopped and changed, and the step of the change."""
    run = Run(tmp_path_factory.mktemp("changed") / "run")
    change(run, BEFORE, BATCH_BEFORE)
    process = run.start("slow-step@step=3:3")
    run.wait_for(
        lambda status: status.get("progress", {}).get("step", 0) >= STOPPED_AFTER,
        f"step {STOPPED_AFTER}",
    )
    process.send_signal(signal.SIGINT)
    assert process.wait(200) == 130, run.log()[-3000:]
    saved = run.status()["checkpoint"]["step"]
    change(run, AFTER, BATCH_AFTER)
    return run, run.finish(run.start()), saved


@pytest.mark.row("A17", "A27")
@pytest.mark.timeout(900)
def test_run_with_changed_values_continues_after_last_step(
    changed: tuple[Run, Outcome, int],
) -> None:
    run, outcome, saved = changed
    history = read_history(log_dir_of(run))

    assert outcome.summary["phase"] == "Succeeded"
    assert [attempt["lostSteps"] for attempt in outcome.summary["attempts"]] == [0, 0]
    assert [record["step"] for record in history] == list(range(1, STEPS + 1))
    assert [record["num_samples"] for record in history] == [
        BATCH_BEFORE * BEFORE["n"] if record["step"] <= saved else BATCH_AFTER * AFTER["n"]
        for record in history
    ]


def test_changed_values_are_recorded_as_segment(changed: tuple[Run, Outcome, int]) -> None:
    run, _, saved = changed
    segment = Segment(
        first_step=saved + 1,
        changes=[
            "data.trainBatchSize: 8 → 4",
            "rollout.n: 5 → 3",
            "rollout.temperature: 0.7 → 0.6",
        ],
    )
    text = f"from step {saved + 1}: {'; '.join(segment.changes)}"

    assert run.status()["segments"] == [segment.model_dump(by_alias=True)]
    [event] = [e for e in read_events(log_dir_of(run)) if e["event"] == "segment"]
    assert (event["first_step"], event["changes"]) == (saved + 1, segment.changes)
    assert f"New segment {text}" in run.log()
    report = (run.dir / "report.html").read_text()
    assert "rollout.n: 5 → 3" in report


@pytest.mark.timeout(300)
def test_changed_model_values_are_rejected_before_start(
    changed: tuple[Run, Outcome, int],
) -> None:
    run, _, _ = changed

    output = run.rejection(run.dir, "training.seed=7", "training.totalSteps=9")

    assert "spec.training.seed: 0 → 7" in output
    assert "start a new job with another --dir and spec.checkpoint.path" in output


@pytest.mark.timeout(600)
def test_new_job_starts_from_best_checkpoint_of_other_job(
    changed: tuple[Run, Outcome, int],
) -> None:
    run, outcome, _ = changed
    folder = run.dir.parent
    best = outcome.summary["bestStep"]
    start = {"checkpoint": {"jobRef": "job"}, "step": "Best", "optimizer": "Reset"}
    job = yaml.safe_load(run.job.read_text())
    job["metadata"]["name"] = "next"
    job["spec"]["training"] |= {"startFrom": start, "totalSteps": best + 2}
    job["spec"]["checkpoint"]["path"] = str(folder / "next-checkpoints")
    job["spec"]["reward"] = {"functions": [{"name": "F1", "weight": 2.0}]}
    (folder / "next.yaml").write_text(yaml.safe_dump(job))
    command = [sys.executable, "-m", "raggrpo_cli.main"]
    arguments = [str(folder / "next.yaml"), "--dir", str(folder / "next")]

    plan = subprocess.run(  # reports an error: the job has no volumes for a cluster
        [*command, "plan", *arguments], capture_output=True, text=True, check=False
    ).stdout
    done = subprocess.run(
        [*command, "run", *arguments], capture_output=True, text=True, check=False
    )

    assert "reward.functions[0].weight: 1.0 → 2.0" in plan
    assert done.returncode == 0, done.stdout + done.stderr
    steps = [record["step"] for record in read_history(folder / "next-checkpoints" / "logs")]
    assert steps == [best + 1, best + 2]
    status = json.loads((folder / "next" / "state.json").read_text())["status"]
    first = status["segments"][-1]
    assert first["firstStep"] == best + 1
    assert first["fromCheckpoint"].startswith(f"{folder}/checkpoints/step_{best:08d}.e")
    assert "reward.functions[0].weight: 1.0 → 2.0" in first["changes"]
    assert "optimizer state: reset" in first["changes"]
    assert status["attempts"][0]["fromStep"] == best


def log_dir_of(run: Run) -> Path:
    return run.dir.parent / "checkpoints" / "logs"
