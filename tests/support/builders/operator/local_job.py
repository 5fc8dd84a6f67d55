"""Runs of `raggrpo` with a fake trainer that fails on request."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from raggrpo_api.names import ENV_RUN_MARK
from raggrpo_operator.local_runtime import warden
from support.builders.operator.jobs import data_of, make_manifest

FAKE_TRAINER = Path(__file__).parents[2] / "fakes" / "trainer"
DEADLINE_SECONDS = 240


class LocalJob:
    """A job file, its job folder and the `raggrpo run` processes of the job."""

    def __init__(self, folder: Path, spec: Mapping[str, Any] | None = None) -> None:
        self.folder, self.dir = folder, folder / "job"
        self.file = folder / "job.yaml"
        self.checkpoints = folder / "checkpoints"
        self.signals = "--default-signal=HUP"
        """Option of `env` that resets the handling of signals."""
        (folder / "model").mkdir()
        self.write(spec)

    def write(self, spec: Mapping[str, Any] | None = None) -> None:
        job = make_manifest(
            "stand-in",
            {
                "model": {"path": str(self.folder / "model")},
                "data": data_of(self.folder / "train.jsonl", batch=8, prompt=64, response=16),
                "training": {"totalSteps": 20},
                "checkpoint": {"path": str(self.checkpoints), "everySteps": 5},
                "resources": {"device": "CPU"},
                "recovery": {"backoffSeconds": 0},
                **(spec or {}),
            },
        )
        self.file.write_text(yaml.safe_dump(job))

    def start(self, *options: str, **orders: Any) -> "subprocess.Popen[str]":
        # Children inherit an ignored SIGHUP, for example if the tests run under nohup.
        return subprocess.Popen(
            [
                "env",
                self.signals,
                *raggrpo("run", str(self.file), "--dir", str(self.dir), *options),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=fake_trainer_env(orders),
            text=True,
            start_new_session=True,
        )

    def run(self, *options: str, **orders: Any) -> tuple[int, str]:
        return self.end_of(self.start(*options, **orders))

    def end_of(self, process: "subprocess.Popen[str]") -> tuple[int, str]:
        """Return the output after the exit; fail if a process of the run remains."""
        output, _ = process.communicate(timeout=DEADLINE_SECONDS)
        return process.returncode, output

    @property
    def state(self) -> dict[str, Any]:
        try:
            state: dict[str, Any] = json.loads((self.dir / "state.json").read_text())
        except FileNotFoundError:
            return {"status": {}, "mark": "", "temp_dir": ""}
        return state

    @property
    def step(self) -> int:
        return int(self.state["status"].get("progress", {}).get("step", 0))

    def wait_for(self, condition: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
        """Wait until the condition is true; fail if the process exits first."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline, f"the condition was not true in time: {self.state}"
            time.sleep(0.1)

    def wait_until_gone(self) -> None:
        """Wait until no process with the run mark of the last run is alive."""
        deadline, mark = time.monotonic() + 60, self.state["mark"]
        assert mark
        while left := warden.marked_processes(mark):
            assert time.monotonic() < deadline, f"processes are still alive: {left}"
            time.sleep(0.1)

    def attempts(self) -> list[tuple[str | None, str]]:
        attempts = reversed(self.state["status"]["attempts"])
        return [(attempt["cause"], attempt["tier"]) for attempt in attempts]


def raggrpo(*arguments: str) -> Sequence[str]:
    return [sys.executable, "-m", "raggrpo_cli.main", *arguments]


def run_job(
    folder: Path, job: Mapping[str, Any], env: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a job with the real trainer to its end; its files are in `folder / "job"`."""
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    return subprocess.run(
        raggrpo("run", str(folder / "job.yaml"), "--dir", str(folder / "job")),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(env or {}), "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def fake_trainer_env(orders: Mapping[str, Any]) -> dict[str, str]:
    """Return an environment in which the fake trainer is the trainer."""
    inherited = {key: value for key, value in os.environ.items() if key != ENV_RUN_MARK}
    path = os.pathsep.join([str(FAKE_TRAINER), inherited.get("PYTHONPATH", "")])
    return {**inherited, "PYTHONPATH": path, "FAKE_TRAINER": json.dumps(orders)}


def kill(process: "subprocess.Popen[str]") -> None:
    """Kill a run with SIGKILL."""
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
