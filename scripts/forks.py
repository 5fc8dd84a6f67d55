"""Runs work in forks of this process, as many beside each other as there are cores."""

import contextlib
import os
import resource
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

Job = tuple[Callable[[Path], int], float]
"""What a fork does, given a folder that no other one uses meanwhile, and its processor seconds."""
FAILED = 70
"""Exit code of work that raised."""


def start(work: Callable[[], int], limit: float) -> int:
    """Begin `work` in a process group of its own, whose leader exits with its result."""
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
    """Yield number and exit code of each job as it ends, or the signal's number below 0."""
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
                _end(child)
                free.append(folder)
                yield number, os.waitstatus_to_exitcode(status)
    finally:  # also if we were stopped: our signals don't reach the children's groups
        for child in running:
            _end(child)


def _end(child: int) -> None:
    """End what is left of a child's group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
