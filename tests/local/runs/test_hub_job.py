"""A job that downloads its model and data from a hub, as `raggrpo run` starts it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from support.builders.trainer.word_model import write_word_model
from support.servers.hub_server import HubServer

WORDS = [f"w{i}" for i in range(16)]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    """A hub with a tiny model and a data set."""
    folder = tmp_path / "model"
    write_word_model(folder, WORDS, context=2048)
    rows = [{"prompt": f"{word} ?", "answer": word} for word in WORDS * 16]
    with HubServer() as server:
        server.add("org/words", {each.name: each.read_bytes() for each in folder.iterdir()})
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        server.add("datasets/org/words", {"train.jsonl": lines.encode(), "README.md": b"Words."})
        yield server


def run(folder: Path, hub: HubServer, *options: str) -> "subprocess.CompletedProcess[str]":
    job = {
        "apiVersion": "raggrpo.io/v1alpha1",
        "kind": "RagGrpoJob",
        "metadata": {"name": "words"},
        "spec": {
            "model": {"source": "hf://org/words"},
            "data": {"sources": ["hf://datasets/org/words"], "trainBatchSize": 8},
            "training": {"totalSteps": 2},
            "checkpoint": {"path": "/mnt/runs/checkpoints"},
            "resources": {"device": "CPU"},
            "volumes": [
                {"name": "runs", "mountPath": "/mnt/runs", "claimTemplate": {"size": "1Gi"}}
            ],
        },
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    command = [sys.executable, "-m", "raggrpo_cli.main", "run", str(folder / "job.yaml")]
    return subprocess.run(
        [*command, "--dir", str(folder / "job"), *options],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "hub")},
    )


@pytest.mark.timeout(600)
def test_job_trains_on_model_and_data_of_hub(tmp_path: Path, hub: HubServer) -> None:
    failed = run(tmp_path, hub, "--set", "model.source=hf://org/words@absent")
    assert failed.returncode != 0
    assert "spec.model.source" in failed.stdout + failed.stderr
    assert "absent" in failed.stdout + failed.stderr
    assert "Traceback" not in failed.stdout + failed.stderr

    done = run(tmp_path, hub)

    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "job" / "summary.json").read_text())
    assert (summary["phase"], summary["step"]) == ("Succeeded", 2)
    exported = tmp_path / "job" / "volumes" / "runs" / "checkpoints" / "export"
    assert (exported / "model.safetensors").exists()
    status = json.loads((tmp_path / "job" / "state.json").read_text())["status"]
    revisions = [each["revision"] for each in status["staging"]["sources"]]
    repositories = [hub.repositories[name] for name in ("org/words", "datasets/org/words")]
    assert revisions == [each.branches["main"] for each in repositories]
