"""A real run is stopped, its job file is changed, and it continues: Ray, vLLM, FSDP2, retrieval."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from local.drills.drill import Run
from raggrpo_api.names import ENV_FAULT
from raggrpo_api.trainer.history import read_events, read_history
from raggrpo_api.trainer.progress import Segment

SCRIPT = Path(__file__).parents[3] / "crds" / "samples" / "change-a-run.sh"
STOPPED_AFTER, STEPS = 2, 6
BEFORE = "rollout.n=5 rollout.temperature=0.7 data.trainBatchSize=8"
AFTER = "rollout.n=3 rollout.temperature=0.6 data.trainBatchSize=4"
SAMPLES_BEFORE, SAMPLES_AFTER = 5 * 8, 3 * 4


@dataclass(frozen=True)
class Changed:
    """A finished run that the script stopped, changed and continued."""

    run: Run
    output: str
    saved: int
    """Step after which the run was stopped."""

    @property
    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.run.dir / "summary.json").read_text())
        return summary

    @property
    def log_dir(self) -> Path:
        return self.run.dir.parent / "checkpoints" / "logs"


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Changed:
    run = Run(tmp_path_factory.mktemp("changed") / "run")
    job = yaml.safe_load(run.job.read_text())
    job["spec"]["training"] |= {"totalSteps": STEPS, "decaySteps": STEPS}
    run.job.write_text(yaml.safe_dump(job))
    programs = Path(sys.executable).parent
    done = subprocess.run(
        [SCRIPT, run.job, run.dir, str(STOPPED_AFTER), BEFORE, AFTER],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ
        | {
            "PATH": f"{programs}:{os.environ['PATH']}",
            ENV_FAULT: "slow-step@step=3:6",
            "A_SECRET": "hunter2",
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr
    attempts = run.status()["attempts"]
    assert [attempt["cause"] for attempt in attempts] == ["Succeeded", "Suspended"]
    return Changed(run, done.stdout, attempts[0]["fromStep"])


@pytest.mark.row("A17", "A27")
@pytest.mark.timeout(900)
def test_run_with_changed_values_continues_after_last_saved_step(
    changed: Changed,
) -> None:
    history = read_history(changed.log_dir)

    assert STOPPED_AFTER <= changed.saved < STEPS
    assert changed.summary["phase"] == "Succeeded"
    assert [attempt["lostSteps"] for attempt in changed.summary["attempts"]] == [0, 0]
    assert [record["step"] for record in history] == list(range(1, STEPS + 1))
    assert [record["num_samples"] for record in history] == [
        SAMPLES_BEFORE if record["step"] <= changed.saved else SAMPLES_AFTER for record in history
    ]


def test_changed_values_are_recorded_as_segment(changed: Changed) -> None:
    run, saved = changed.run, changed.saved
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
    [event] = [e for e in read_events(changed.log_dir) if e["event"] == "segment"]
    assert (event["first_step"], event["changes"]) == (saved + 1, segment.changes)
    assert f"New segment {text}" in changed.output
    report = (run.dir / "report.html").read_text()
    assert "rollout.n: 5 → 3" in report


@pytest.mark.row("A35")
def test_compare_shows_values_before_and_after_change(changed: Changed) -> None:
    table = changed.output[changed.output.index("B vs. A") :]
    rows = {line[:36].strip(): line[36:].split() for line in table.splitlines()}

    assert rows["steps"][:2] == [str(changed.saved), str(STEPS - changed.saved)]
    assert rows["samples per step"] == [str(SAMPLES_BEFORE), str(SAMPLES_AFTER), "-70", "%"]
    assert rows["rollout.n"] == ["5", "3"]
    for name in (
        "until the first step is done",
        "LoadingModel",
        "seconds per sample",
        "tokens per second",
        "kb p50",
        "kb p95",
        "rank",
    ):
        before, after, percent, unit = rows[name]
        assert float(before) > 0, name
        assert float(after) > 0, name
        assert re.fullmatch(r"[+-]\d+", percent), name
        assert unit == "%", name
    assert "reward, last 10 steps" in rows


@pytest.mark.timeout(300)
def test_changed_model_values_are_rejected_before_start(
    changed: Changed,
) -> None:

    output = changed.run.rejection(changed.run.dir, "training.seed=7", "training.totalSteps=9")

    assert "spec.training.seed: 0 → 7" in output
    assert "start a new job with another --dir and spec.checkpoint.path" in output


@pytest.mark.timeout(600)
def test_new_job_starts_from_best_checkpoint_of_other_job(
    changed: Changed,
) -> None:
    run = changed.run
    folder = run.dir.parent
    best = changed.summary["bestStep"]
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
