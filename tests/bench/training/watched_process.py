"""Run a command and measure the peak memory of its process tree."""

import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

SAMPLE_SECONDS = 0.5
END_SECONDS = 60.0
"""Grace period after SIGTERM, in which `raggrpo run` saves and ends its children."""


def run_watched(
    command: Sequence[str], env: Mapping[str, str], log: Path, timeout_seconds: float
) -> int:
    """Return the peak RSS of the process tree in bytes.

    Raises RuntimeError with the end of the log if the command fails.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=dict(env), stdout=output, stderr=subprocess.STDOUT)
    peak = 0
    deadline = time.monotonic() + timeout_seconds
    try:
        while process.poll() is None:
            if time.monotonic() > deadline:
                raise RuntimeError(f"no end after {timeout_seconds:.0f} s: {_log_tail(log)}")
            peak = max(peak, tree_rss(process.pid))
            time.sleep(SAMPLE_SECONDS)
    finally:
        end(process)
    if process.returncode:
        raise RuntimeError(f"{command[1:4]} exited with {process.returncode}: {_log_tail(log)}")
    return peak


def tree_rss(pid: int) -> int:
    """Return the RSS of a process tree in bytes; shared pages count for each process."""
    total = 0
    try:
        root = psutil.Process(pid)
        members = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for member in members:
        try:
            total += member.memory_info().rss
        except psutil.NoSuchProcess:
            continue  # exited in the meantime
    return total


def end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _log_tail(log: Path) -> str:
    return log.read_text(errors="replace")[-3000:]
