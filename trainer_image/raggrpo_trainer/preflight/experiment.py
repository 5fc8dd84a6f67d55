"""Experiments with a model's architecture, each in a separate process because they use torch.

`python -m` of this module runs one with limited CPU time and memory.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
from typing import Any

from raggrpo_api.resource_limits import limit_resources

EXPERIMENT_SECONDS = 240
"""Timeout of an experiment."""
MAX_CPU_SECONDS = 200
"""CPU time of an experiment; the slowest families need 10 s."""
MAX_MEMORY = 4 << 30
"""Bytes of memory of an experiment; the largest families need 1.4 GiB."""


def run_experiment(module: str, *arguments: str) -> dict[str, Any]:
    """Run a module of `policy` and return the JSON that it writes.

    If it fails, the result has only `problem`.
    """
    command = [sys.executable, "-m", __name__, module, *arguments]
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
        causes = {
            "SIGKILL": ", usually because memory ran out,",
            "SIGXCPU": f" after {MAX_CPU_SECONDS} s of CPU time",
        }
        cause = causes.get(name, "")
        return f"{module} was killed by {name}{cause} while it built the model"
    lines = child.stderr.strip().splitlines()
    last = lines[-1][:200] if lines else f"{module} exited with code {child.returncode}"
    return f"transformers in this image cannot build the model: {last}"


def main(module: str, *arguments: str) -> None:
    """Run a module of `policy` in this process with limits."""
    experiment = importlib.import_module(f"raggrpo_trainer.policy.{module}")
    limit_resources(MAX_CPU_SECONDS, MAX_MEMORY)
    experiment.main(*arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
