import subprocess
import sys
from typing import Any

import pytest

from raggrpo_trainer.preflight.experiment import run_experiment

real_run = subprocess.run
LIMITED = """
import sys, time, types
from raggrpo_trainer.preflight import experiment
module = types.ModuleType("raggrpo_trainer.policy.greedy")
def main():
    {}
module.main = main
sys.modules[module.__name__] = module
experiment.MAX_CPU_SECONDS, experiment.MAX_MEMORY = 1, 64 << 20
experiment.main("greedy")
"""
"""Runs an experiment with lower limits."""


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("import os; os.abort()", "layout_check was killed by SIGABRT while it built the model"),
        (
            "import os; os.kill(os.getpid(), 9)",
            "layout_check was killed by SIGKILL, usually because memory ran out, while it built",
        ),
        ("raise SystemExit(7)", "cannot build the model: layout_check exited with code 7"),
        ("raise ValueError('bad width')", "cannot build the model: ValueError: bad width"),
        (
            LIMITED.format("while time.process_time() < 9: pass"),
            "layout_check was killed by SIGXCPU after 200 s of CPU time while it built the model",
        ),
        (LIMITED.format("bytearray(1 << 30)"), "cannot build the model: MemoryError"),
    ],
)
def test_problem_of_failed_experiment_names_its_exit(
    monkeypatch: pytest.MonkeyPatch, code: str, problem: str
) -> None:
    def run(_: object, **options: Any) -> Any:
        return real_run([sys.executable, "-c", code], **options)

    monkeypatch.setattr(subprocess, "run", run)
    assert problem in run_experiment("layout_check", "model")["problem"]
