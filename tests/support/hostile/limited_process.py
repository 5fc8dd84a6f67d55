"""Run Python code with limited memory and time on files made to break it."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

MAX_MEMORY = 1 << 30
"""Address space in bytes."""
MAX_SECONDS = 150
"""Time after which a process hangs; it checks up to 60 files."""

Completed = subprocess.CompletedProcess[str]
Make = Callable[[Path], object]
"""Function that makes hostile files in a folder."""


def run_limited(arguments: Sequence[str], memory: int = MAX_MEMORY) -> Completed:
    """Run Python with these arguments; memory and time are limited."""
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=MAX_SECONDS,
        stdin=subprocess.DEVNULL,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (memory, memory)),
        env=os.environ
        | {
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
    )


def outcomes(check: str, paths: Sequence[Path], memory: int = MAX_MEMORY) -> dict[str, str]:
    """Return what `support.hostile.checks.<check>` returns for each path, as text.

    All paths are checked by one process. An exception that is not expected becomes its traceback.
    """
    done = run_limited(["-m", "support.hostile.checks", check, *map(str, paths)], memory)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == len(paths), (done.returncode, done.stdout[-500:], done.stderr[-3000:])
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    return {each["path"]: each["outcome"] for each in map(json.loads, lines)}
