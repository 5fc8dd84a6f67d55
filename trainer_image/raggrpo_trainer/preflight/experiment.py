"""Experiments with a model's architecture, each in a separate process because they use torch."""

import json
import os
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
        last = (child.stderr.strip().splitlines() or ["no output"])[-1]
        return {"problem": f"transformers in this image cannot build the model: {last[:200]}"}
    return result
