"""The unchanged minimal sample, with a local folder in place of its volume claim."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from raggrpo_api.trainer.history import read_history
from support.builders.data.rows import write_rows
from support.builders.trainer.word_model import write_word_model
from support.servers.wandb_files import offline_run

SAMPLE = Path(__file__).parents[3] / "crds" / "samples" / "minimal.yaml"


def run(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "raggrpo_cli.main", "run", str(SAMPLE)]
    return subprocess.run(
        [*command, "--dir", str(folder / "job"), "--set", "resources.device=CPU", *options],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "WANDB_MODE": "offline"},
    )


def fill(claim: Path) -> None:
    words = [f"w{i}" for i in range(16)]
    write_word_model(claim / "model", words, context=2048)
    rows = [{"prompt": f"{word} ?", "answer": word} for word in words * 16]
    write_rows(claim / "train.jsonl", rows)


@pytest.mark.row("B32")
@pytest.mark.timeout(600)
def test_minimal_sample_requires_mount_then_trains_and_exports(tmp_path: Path) -> None:
    claim = tmp_path / "claim"
    fill(claim)

    rejected = run(tmp_path)
    assert rejected.returncode in (2, 3, 4)
    assert "--mount work=" in rejected.stdout + rejected.stderr

    settings = ("training.totalSteps=2", "monitoring.mode=Full", "monitoring.wandb.project=demo")
    sets = [word for setting in settings for word in ("--set", setting)]
    done = run(tmp_path, "--mount", f"work={claim}", *sets)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (claim / "checkpoints" / "minimal" / "export" / "model.safetensors").exists()
    summary = json.loads((tmp_path / "job" / "summary.json").read_text())
    assert (summary["phase"], summary["step"]) == ("Succeeded", 2)
    log_dir = claim / "checkpoints" / "minimal" / "logs"
    assert "it/s" not in (log_dir / "attempts" / "1" / "driver.log").read_text()
    for record in read_history(log_dir):  # no positions if all rewards are equal
        assert (record["train_tflops"] > 0) == (record["num_positions"] > 0)
        assert (
            record["rank_memory_bytes"] > 2**28
        )  # size of torch, which the driver does not import
    shown = offline_run(log_dir)
    assert (shown.project, shown.name) == ("demo", "minimal")
    assert {p["step"] for p in shown.history if "train_tflops" in p} == {1, 2}
