"""An unmodified application of the `openai` package, trained by `raggrpo run`."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from raggrpo_api.trainer.history import read_history
from support.builders.operator.local_job import run_job

MISMATCH_NATS = 1e-4
STEPS = 3
JUDGE_KEY = "key-of-the-judge"
APPLICATION = '''
"""Two turns of one conversation, and a question of a separate one."""
import json
import os
from pathlib import Path

from openai import OpenAI

client = OpenAI()
names = [json.loads(line)["contents"] for line in Path(os.environ["CORPUS"]).open()]


def ask(messages, model="any"):
    return client.chat.completions.create(model=model, messages=messages).choices[0].message.content


def answer(question):
    passages = [name for name in names if question.split()[-1] in name][:3]
    messages = [{"role": "user", "content": "\\n".join([*passages, question])}]
    messages.append({"role": "assistant", "content": ask(messages)})
    messages.append({"role": "user", "content": f"\\n{question}"})
    final = ask(messages)
    if len(question) % 2:
        ask([{"role": "user", "content": passages[0]}])
    grade = int(ask([{"role": "user", "content": final}], model="judge"))
    return {"answer": final, "passages": passages, "score": len(final) % 5 + grade}
'''
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
)


class Judge(ThreadingHTTPServer):
    """An OpenAI-compatible server, whose model grades everything with 1."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), JudgeRequest)
        self.requests: list[tuple[str, str | None]] = []
        """Path and credentials of each request."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class JudgeRequest(BaseHTTPRequestHandler):
    server: Judge

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append((self.path, self.headers["Authorization"]))
        message = {"role": "assistant", "content": "1"}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        body = json.dumps({"id": "j", "object": "chat.completion", "created": 0, "model": "judge",
                           "choices": [choice]}).encode()  # fmt: skip
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Write nothing."""


@pytest.fixture
def judge() -> Iterator[Judge]:
    with Judge() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def make_job(folder: Path, judge_url: str) -> dict[str, Any]:
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
                    "forward": [
                        {
                            "models": ["judge"],
                            "url": judge_url,
                            "apiKeySecret": {"name": "judge", "key": "token"},
                        }
                    ],
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
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return folder


@pytest.mark.row("F2")
@pytest.mark.timeout(900)
def test_openai_application_is_trained_on_its_exact_tokens(folder: Path, judge: Judge) -> None:
    secret = {"RAGGRPO_SECRET_JUDGE_TOKEN": JUDGE_KEY}
    done = run_job(folder, make_job(folder, judge.url), secret)

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
    assert [each for each in records if each["untrainedCalls"] != {"judge": 1}] == []
    assert {*judge.requests} == {("/v1/chat/completions", f"Bearer {JUDGE_KEY}")}
    log = "".join(path.read_text() for path in (folder / "job").rglob("*.log"))
    assert JUDGE_KEY not in log
    status = json.loads((folder / "job" / "state.json").read_text())["status"]
    checks = {each["id"]: each for each in status["preflight"]["checks"]}
    ready = checks["AgentReady"]
    assert ready["state"] in ("Passed", "Warned")
    assert "calls of the scripted policy: " in ready["evidence"]
    assert "forwarded calls of judge" in ready["evidence"]
