"""Experiments with a model's architecture, each in a separate process because they use torch."""

import json
import os
import signal
import subprocess
import sys
from typing import Any

EXPERIMENT_SECONDS = 240
"""Timeout of an experiment."""


def run_experiment(module: str, *arguments: str) -> dict[str, Any]:
    """Run a module of `policy` and return the JSON that it writes.

    If it fails, the result has only `problem`.
    """
    command = [sys.executable, "-m", f"raggrpo_trainer.policy.{module}", *arguments]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    try:
        child = subprocess.run(
            command, capture_output=True, text=True, env=env, timeout=EXPERIMENT_SECONDS
        )
    except subprocess.TimeoutExpired:
        return {"problem": f"{module} took more than {EXPERIMENT_SECONDS} s"}
    try:
        result: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return {"problem": _failure(module, child)}
    return result


def _failure(module: str, child: subprocess.CompletedProcess[str]) -> str:
    """Return why an experiment wrote no result."""
    if child.returncode < 0:
        name = signal.Signals(-child.returncode).name
        cause = ", usually because memory ran out," if name == "SIGKILL" else ""
        return f"{module} was killed by {name}{cause} while it built the model"
    lines = child.stderr.strip().splitlines()
    last = lines[-1][:200] if lines else f"{module} exited with code {child.returncode}"
    return f"transformers in this image cannot build the model: {last}"
