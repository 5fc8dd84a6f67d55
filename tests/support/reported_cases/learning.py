"""Reported cases about runs that learn nothing."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from support.builders.data.rows import write_rows
from support.builders.operator.jobs import changed, data_of, make_manifest
from support.builders.trainer.word_model import write_word_model
from support.reported_cases.case import case

STEPS = 3


@dataclass(frozen=True)
class UselessRun:
    """A run that cannot learn, by changes of a small job."""

    reason: str
    problem: str
    changes: dict[str, Any] = field(default_factory=dict)
    never_ends: bool = False
    """Whether the model, at a low temperature, repeats its last token without an end."""


USELESS_RUNS = [
    UselessRun("NoRewardSignal", "100 % of completions have reward 0 since step 1"),
    UselessRun(
        "ZeroVariance",
        "100 % of groups have equal rewards and contribute no gradient since step 1",
        {"spec.reward.functions": [{"name": "Python", "python": "constant:one"}]},
    ),
    UselessRun(
        "AllTruncated",
        "100 % of completions are cut at data.maxResponseLength since step 1",
        {"spec.rollout.temperature": 0.02, "spec.data.maxResponseLength": 16},
        never_ends=True,
    ),
    UselessRun(
        "NothingParses",
        "100 % of completions lack the output that the reward reads",
        {"spec.reward.answerMarker": " ".join(["north"] * 8)},  # the model hardly ever says it
    ),
]


@case("R5", fault="A run that learns nothing looks like a success", inputs=USELESS_RUNS)
def run_without_learning_is_reported(folder: Path, given: UselessRun) -> None:
    """Output, status, report and summary say why the run learned nothing."""
    job, job_folder = _write_job(folder, given), folder / "job"
    output = _raggrpo("run", str(job), "--dir", str(job_folder))
    status = _raggrpo("status", "--dir", str(job_folder))
    report = (job_folder / "report.html").read_text()
    summary = json.loads((job_folder / "summary.json").read_text())

    assert f"complete, but its last steps learned nothing ({given.reason})" in output, output
    assert given.problem in output, output
    assert "example: sample " in output, output
    assert f"Succeeded, NotLearning ({given.reason})" in status
    assert f"NotLearning=True {given.reason}" in " ".join(status.split())
    assert given.problem in report
    assert summary["notLearning"]["reason"] == given.reason
    assert summary["step"] == STEPS


def _write_job(folder: Path, given: UselessRun) -> Path:
    words = ["north", "east", "south", "west"]
    model = write_word_model(folder / "model", words, tied=given.never_ends)
    rows = [{"prompt": word, "answer": "never said"} for word in words * 2]
    write_rows(folder / "train.jsonl", rows)
    (folder / "constant.py").write_text("def one(sample):\n    return 1.0\n")
    raw = make_manifest(
        "useless",
        {
            "model": {"path": str(model)},
            "data": data_of(folder / "train.jsonl", batch=4, prompt=16, response=64),
            "rollout": {"n": 4},
            "training": {"totalSteps": STEPS, "precision": "FP32"},
            "reward": {
                "functions": [{"name": "ExactMatch"}],
                "codeFrom": {"path": str(folder)},
            },
            "checkpoint": {"path": str(folder / "checkpoints")},
            "resources": {"device": "CPU"},
        },
    )
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(changed(raw, given.changes)))
    return path


def _raggrpo(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "raggrpo_cli.main", *words],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"COLUMNS": "1000"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
