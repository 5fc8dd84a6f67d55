"""A real run whose files change, move or are damaged between its attempts."""

import subprocess
import sys
from pathlib import Path

import pytest

from local.drills.drill import Run


@pytest.mark.long
@pytest.mark.row("A27", "B7", "B20")
@pytest.mark.timeout(900)
def test_run_resumes_after_move_and_damage_but_not_with_other_content(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.finish(run.start("", "training.totalSteps=4"))

    corpus = tmp_path / "run" / "corpus.jsonl"
    original = corpus.read_text()
    corpus.write_text(original.replace("c7", "c8"))
    output = run.rejection(run.dir, "training.totalSteps=6")
    assert "CheckpointIncompatible" in output
    assert 'corpus of endpoint kb: "' in output
    corpus.write_text(original)

    newest = tmp_path / "run" / "checkpoints" / "step_00000004.e1"
    (newest / "COMPLETE").unlink()
    outcome = run.finish(run.start("", "training.totalSteps=6"))
    resumed = outcome.summary["attempts"][0]
    assert (resumed["fromStep"], resumed["toStep"]) == (3, 6)
    assert any(newest.name in each for each in resumed["skippedCheckpoints"])

    run.move(tmp_path / "mnt" / "moved")
    outcome = run.finish(run.start("", "training.totalSteps=7"))
    assert outcome.summary["attempts"][0]["fromStep"] == 6

    command = [sys.executable, "-m", "raggrpo_cli.main", "export", "--dir", str(run.dir)]
    subprocess.run([*command, "--step", "best", "-o", str(tmp_path / "best")], check=True)
    assert (tmp_path / "best" / "model.safetensors").is_file()
