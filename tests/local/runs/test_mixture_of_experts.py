"""A job with a mixture-of-experts model: preflight, training, checkpoint and resume."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from raggrpo_api.trainer.history import read_history
from support.builders.data.rows import write_rows
from support.builders.trainer.word_model import write_word_model

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

SAMPLE = Path(__file__).parents[3] / "crds" / "samples" / "minimal.yaml"
WORDS = [f"w{i}" for i in range(16)]
NATS = 1e-4


def run(folder: Path, claim: Path, *settings: str) -> None:
    command = [sys.executable, "-m", "raggrpo_cli.main", "run", str(SAMPLE)]
    command += ["--dir", str(folder / "job"), "--mount", f"work={claim}"]
    command += [word for each in settings for word in ("--set", each)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.row("A21", "D2")
def test_mixture_of_experts_job_trains_and_resumes(tmp_path: Path) -> None:
    claim = tmp_path / "claim"
    write_word_model(claim / "model", WORDS, context=2048, experts=4)
    half = WORDS[:8]  # an untrained model is right half of the time
    write_rows(claim / "train.jsonl", [{"prompt": f"{w} ?", "answer": half} for w in WORDS * 16])
    settings = (
        "resources.device=CPU",
        "training.precision=FP32",
        "training.learningRate=1e-3",
        "data.maxResponseLength=1",
    )

    run(tmp_path, claim, *settings, "training.totalSteps=2")
    run(tmp_path, claim, *settings, "training.totalSteps=4")

    state = (tmp_path / "job" / "state.json").read_text()
    assert "4 experts, trained without the router's auxiliary loss" in state
    history = read_history(claim / "checkpoints" / "minimal" / "logs")
    assert [record["step"] for record in history] == [1, 2, 3, 4]
    assert [record["attempt"] for record in history] == [1, 1, 2, 2]
    assert max(record["mismatch_mean"] for record in history) <= NATS
    assert min(record["num_positions"] for record in history) > 0
