"""Run jobs in forks of this process, at most one per core at a time."""

import contextlib
import os
import resource
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

Job = tuple[Callable[[Path], int], float]
"""A function that gets a folder for its exclusive use, and the limit of its CPU seconds."""
FAILED = 70
"""Exit code of a job that raised an exception."""


def start(work: Callable[[], int], limit: float) -> int:
    """Fork a process that runs `work` in a new process group, and return its PID.

    The process exits with the result of `work`; `limit` is the maximum CPU time in seconds.
    """
    child = os.fork()
    if child:
        return child
    code = FAILED
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit)))
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        code = int(work())
    finally:
        os._exit(code)


def in_forks(jobs: Sequence[Job], scratch: Path) -> Iterator[tuple[int, int]]:
    """Yield index and exit code of each finished job; a job killed by signal N has code -N."""
    free = [scratch / str(n) for n in range(os.cpu_count() or 1)]
    waiting = list(enumerate(jobs))[::-1]
    running: dict[int, tuple[int, Path]] = {}
    try:
        while waiting or running:
            while waiting and free:
                number, (work, limit) = waiting.pop()
                folder = free.pop()
                running[start(partial(work, folder), limit)] = number, folder
            child, status = os.wait()
            if child in running:
                number, folder = running.pop(child)
                _kill_group(child)
                free.append(folder)
                yield number, os.waitstatus_to_exitcode(status)
    finally:  # signals to this process do not reach the groups of its children
        for child in running:
            _kill_group(child)


def _kill_group(child: int) -> None:
    """Kill the remaining processes in the process group of a child."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
