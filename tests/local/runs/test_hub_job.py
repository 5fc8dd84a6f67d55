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
from support.servers.hub_server import TOKEN, HubServer

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


def run(
    folder: Path, hub: HubServer, *options: str, token: str = ""
) -> "subprocess.CompletedProcess[str]":
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
        env={
            **os.environ,
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(folder / "hub"),
            "HF_HUB_DISABLE_XET": "1",
            "HF_TOKEN": token,
        },
    )


@pytest.mark.row("F3")
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


@pytest.mark.row("F3")
@pytest.mark.timeout(600)
def test_job_pushes_its_results_to_hub(tmp_path: Path, hub: HubServer) -> None:
    sets = (
        "output.push=hf://org/result",
        "training.lora={rank: 2}",
        "checkpoint.everySteps=1",
    )
    options = [text for each in sets for text in ("--set", each)]

    without_token = run(tmp_path, hub, *options)

    assert without_token.returncode == 0, without_token.stdout + without_token.stderr
    assert "not pushed    TokenMissing" in without_token.stdout
    assert "org/result" not in hub.repositories

    done = run(tmp_path, hub, *options, token=TOKEN)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "pushed        hf://org/result, revision " in done.stdout
    repository = hub.repositories["org/result"]
    assert repository.is_private
    files = repository.commits[repository.branches["main"]]
    status = json.loads((tmp_path / "job" / "state.json").read_text())["status"]
    assert status["push"]["revision"] == repository.branches["main"]
    model = {"config.json", "model.safetensors", "adapter/adapter_model.safetensors"}
    expected = model | {"README.md", "report.html", "summary.json"}
    if status["bestStep"] != 2:
        expected |= {f"best/{name}" for name in model}
    assert expected <= set(files)
    card = files["README.md"].decode()
    revision = hub.repositories["org/words"].branches["main"]
    assert f"| Base model | hf://org/words, revision {revision} |" in card
    assert "| Steps | 2 of 2 |" in card
    adapter = json.loads(files["adapter/adapter_config.json"])
    assert adapter["base_model_name_or_path"] == "org/words"
    assert str(tmp_path) not in files["adapter/README.md"].decode()
    summary = json.loads(files["summary.json"])
    assert summary["attempts"][0]["toStep"] == 2
    assert len(summary["attempts"]) == 1

    exported = [sys.executable, "-m", "raggrpo_cli.main", "export", "--dir", str(tmp_path / "job")]
    by_hand = subprocess.run(
        [*exported, "--step", "1", "-o", str(tmp_path / "out"), "--push", "hf://org/result@first"],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "HF_ENDPOINT": hub.url,
            "HF_HUB_DISABLE_XET": "1",
            "HF_TOKEN": TOKEN,
        },
    )
    assert by_hand.returncode == 0, by_hand.stdout + by_hand.stderr
    assert "pushed to hf://org/result@first, revision " in by_hand.stdout
    files = repository.commits[repository.branches["first"]]
    assert "- this folder: the model after step 1" in files["README.md"].decode()
    assert model | {"report.html", "summary.json"} <= set(files)
