"""An unmodified application of the `openai` package, trained by `raggrpo run`."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from raggrpo_api.trainer.history import read_history

MISMATCH_NATS = 1e-4
STEPS = 3
APPLICATION = '''
"""Two turns of one conversation, and a question of a separate one."""
import json
import os
from pathlib import Path

from openai import OpenAI

client = OpenAI()
names = [json.loads(line)["contents"] for line in Path(os.environ["CORPUS"]).open()]


def ask(messages):
    return client.chat.completions.create(model="any", messages=messages).choices[0].message.content


def answer(question):
    passages = [name for name in names if question.split()[-1] in name][:3]
    messages = [{"role": "user", "content": "\\n".join([*passages, question])}]
    messages.append({"role": "assistant", "content": ask(messages)})
    messages.append({"role": "user", "content": f"\\n{question}"})
    final = ask(messages)
    if len(question) % 2:
        ask([{"role": "user", "content": passages[0]}])
    return {"answer": final, "passages": passages, "score": len(final) % 5}
'''
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
)


def make_job(folder: Path) -> dict[str, Any]:
    """Return a job that trains APPLICATION on the quickstart's data in `folder/input`."""
    data = folder / "input"
    return {
        "apiVersion": "raggrpo.io/v1alpha1",
        "kind": "RagGrpoJob",
        "metadata": {"name": "agent"},
        "spec": {
            "model": {"path": str(data / "model")},
            "data": {
                "trainFiles": [str(data / "train.parquet")],
                "validationFiles": [str(data / "validation.parquet")],
                "trainBatchSize": 4,
                "maxPromptLength": 120,
                "maxResponseLength": 8,
                "chatTemplate": CHAT_TEMPLATE,
            },
            "rollout": {
                "n": 4,
                "temperature": 1.0,
                "agent": {
                    "python": "app:answer",
                    "request": "{question}",
                    "passages": "passages",
                    "reward": "score",
                    "processes": 4,
                },
            },
            "training": {"totalSteps": STEPS, "learningRate": 1e-3, "precision": "FP32"},
            "reward": {
                "functions": [{"name": "ExactMatch"}],
                "codeFrom": {"path": str(folder / "code")},
            },
            "validation": {"maxSamples": 8, "afterTraining": True},
            "checkpoint": {"path": str(folder / "checkpoints"), "everySteps": 1},
            "resources": {"device": "CPU", "ranks": 2},
            "env": [{"name": "CORPUS", "value": str(data / "corpus.jsonl")}],
        },
    }


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def run(folder: Path, job: dict[str, Any]) -> "subprocess.CompletedProcess[str]":
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    command = [sys.executable, "-m", "raggrpo_cli.main", "run", str(folder / "job.yaml")]
    return subprocess.run(
        [*command, "--dir", str(folder / "job")],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the application and the inputs of the quickstart, barely warmed up."""
    folder = tmp_path_factory.mktemp("agent")
    (folder / "code").mkdir()
    (folder / "code" / "app.py").write_text(APPLICATION)
    command = [sys.executable, "-m", "raggrpo_quickstart", "--dir", str(folder / "input")]
    subprocess.run(
        [*command, "--steps", "2"],
        check=True,
        env=environment(),
    )
    return folder


@pytest.mark.row("F2")
@pytest.mark.timeout(900)
def test_openai_application_is_trained_on_its_exact_tokens(folder: Path) -> None:
    done = run(folder, make_job(folder))

    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((folder / "job" / "summary.json").read_text())
    assert (summary["phase"], summary["step"]) == ("Succeeded", STEPS)
    steps = read_history(folder / "checkpoints" / "logs")
    assert [each["step"] for each in steps] == [1, 2, 3]
    assert 0.0 < max(each["mismatch_max"] for each in steps) <= MISMATCH_NATS
    lines = (folder / "checkpoints" / "logs").glob("**/trajectories.jsonl")
    records = [json.loads(line) for path in lines for line in path.read_text().splitlines()]
    assert {each["rows"] for each in records} == {1, 2}
    assert {len(each["calls"]) for each in records} == {2, 3}
    assert all(each["calls"][1]["continues"] for each in records)
    assert [each["failure"] for each in records if each["failure"]] == []
