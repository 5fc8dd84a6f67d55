"""Run a function in a second process and kill it at a chosen call."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.sharedctypes import Synchronized
from types import FrameType

FORK = multiprocessing.get_context("fork")


def count_calls(target: Callable[..., None], *arguments: object) -> int:
    """Return how many C functions, including system calls, the target calls."""
    calls = FORK.Value("Q", 0)
    process = FORK.Process(target=_run, args=(target, arguments, 0, calls))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    return int(calls.value)


def kill_at(share: float, calls: int, target: Callable[..., None], *arguments: object) -> None:
    """Run the target and kill it after this share of its calls, or right after it returns."""
    process = FORK.Process(target=_run, args=(target, arguments, 1 + int(share * calls), None))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


def _run(
    target: Callable[..., None],
    arguments: tuple[object, ...],
    deadly_call: int,
    calls: "Synchronized[int] | None",
) -> None:
    done = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal done
        if event == "c_call":
            done += 1
            if done == deadly_call:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)
    target(*arguments)
    sys.setprofile(None)
    if calls is None:
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        calls.value = done
