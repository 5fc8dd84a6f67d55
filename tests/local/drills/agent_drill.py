"""A run of `obedient_agent`, whose application kills processes in the middle of trajectories."""

import json
from pathlib import Path

import yaml

from local.drills.drill import SAVE_EVERY, Run
from support.builders.data.rows import write_rows
from support.builders.operator.jobs import data_of, make_manifest
from support.builders.trainer.obedient_agent import APPLICATION, OWN_PROCESS
from support.builders.trainer.word_model import write_word_model

STEPS = 12
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
)


def make_input(folder: Path) -> Path:
    """Write model, data, application and job file; return the path of the job file."""
    words = [*(f"w{i}" for i in range(60)), *(f"c{i}" for i in range(60)), "and"]
    model = write_word_model(folder / "model", words)
    answer = " ".join(f"c{i}" for i in range(60))
    write_rows(folder / "train.jsonl", [{"prompt": f"w{i} ?", "answer": answer} for i in range(60)])
    (folder / "code").mkdir()
    (folder / "code" / "app.py").write_text(APPLICATION)
    (folder / "orders").mkdir()
    job = make_manifest(
        "agent-drill",
        {
            "model": {"path": str(model)},
            "data": data_of(folder / "train.jsonl", batch=4, prompt=48, response=8)
            | {"chatTemplate": CHAT_TEMPLATE},
            "rollout": {
                "n": 4,
                "temperature": 1.0,
                "agent": {"python": "app:answer", "request": "{question}", "processes": 4},
            },
            "training": {"totalSteps": STEPS, "learningRate": 1e-3, "precision": "FP32"},
            "reward": {"functions": [{"name": "F1"}], "codeFrom": {"path": str(folder / "code")}},
            "checkpoint": {"path": str(folder / "checkpoints"), "everySteps": SAVE_EVERY},
            "resources": {"device": "CPU"},
            "recovery": {"backoffSeconds": 0},
            "env": [{"name": "DRILL", "value": str(folder / "orders")}],
        },
    )
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    return path


class AgentRun(Run):
    """A run whose application obeys orders in the middle of its trajectories."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, make_input)
        self.orders = folder / "orders"

    def order(self, name: str, victim: int = OWN_PROCESS) -> None:
        """Give an order with the process id of its victim, and wait until it is obeyed."""
        temporary = self.orders / "temporary"
        temporary.write_text(str(victim))
        temporary.rename(self.orders / name)
        self.wait_for(lambda _: not (self.orders / name).exists(), f"the order {name}")

    def failures(self) -> list[str]:
        """Return the failures of logged trajectories."""
        logs = (self.dir.parent / "checkpoints" / "logs").glob("**/trajectories.jsonl")
        records = (json.loads(line) for log in logs for line in log.read_text().splitlines())
        return [each["failure"] for each in records if each["failure"]]

    def repeats(self) -> list[str]:
        """Return the reasons for which runs of the application were repeated."""
        folder = self.dir.parent / "checkpoints" / "logs"
        logs = (log.read_text() for log in folder.rglob("driver.log"))
        lines = (line for log in logs for line in log.splitlines())
        mark = "the run is repeated: "
        return [line.partition(mark)[2] for line in lines if mark in line]
