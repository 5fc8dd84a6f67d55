import fcntl
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from raggrpo_api.forked_trial import MAX_PROBLEM_BYTES, TrialFailed, forked_problem


def problem(problem_of: Callable[[], str], seconds: int = 300) -> str:
    return forked_problem(problem_of, cpu_seconds=1, memory=64 << 20, seconds=seconds)


def test_forked_trial_returns_the_problem_and_changes_nothing_else() -> None:
    values: list[int] = []

    def fill() -> str:
        values.append(os.getpid())
        return "x" * 5_000

    assert problem(lambda: "") == ""
    assert problem(lambda: "größer") == "größer"
    assert problem(fill) == "x" * (MAX_PROBLEM_BYTES - 1)
    assert values == []


def loop() -> str:
    while True:
        pass


def fail() -> str:
    raise ValueError("not caught")


@pytest.mark.parametrize(
    ("problem_of", "reason"),
    [
        (loop, "takes more than 1 seconds of CPU time"),
        (lambda: str(bytearray(1 << 30)), "needs more than 64 MiB of memory"),
        (lambda: str(os.kill(os.getpid(), signal.SIGKILL)), "is killed, usually because memory"),
        (lambda: str(os.kill(os.getpid(), signal.SIGALRM)), "takes more than 300 seconds"),
        (lambda: str(os.kill(os.getpid(), signal.SIGUSR1)), r"crashes \(exit code -10\)"),
        (fail, r"crashes \(exit code 1\)"),
    ],
)
def test_forked_trial_reports_what_ended_it(problem_of: Callable[[], str], reason: str) -> None:
    with pytest.raises(TrialFailed, match=reason):
        problem(problem_of)


def test_forked_trial_has_a_time_limit(tmp_path: Path) -> None:
    pid = tmp_path / "pid"

    def sleep() -> str:
        pid.write_text(str(os.getpid()))
        time.sleep(60)
        return ""

    with pytest.raises(TrialFailed, match=r"takes more than 1 seconds$"):
        problem(sleep, seconds=1)
    with pytest.raises(ChildProcessError):
        os.waitpid(int(pid.read_text()), os.WNOHANG)


def test_forked_trial_runs_with_many_open_files() -> None:
    limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limit, 1_200), hard))
    opened = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while opened[-1] < 1_100:
            opened.append(os.dup(opened[0]))
        assert problem(lambda: "done") == "done"
    finally:
        for each in opened:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def test_forked_trial_closes_connections_in_the_child_only() -> None:
    near, far = socket.socketpair()
    high = fcntl.fcntl(far, fcntl.F_DUPFD_CLOEXEC, 900)  # beyond the pipe
    numbers = (near.fileno(), far.fileno(), high)

    def opened() -> str:
        return str([each for each in numbers if os.path.lexists(f"/proc/self/fd/{each}")])

    try:
        assert problem(opened) == "[]"
        near.sendall(b"x")
        assert os.read(high, 1) == b"x"
    finally:
        near.close()
        far.close()
        os.close(high)


ORPHAN = """
import os, signal, time
from raggrpo_api.forked_trial import forked_problem

def wait():
    os.write(1, b"started")
    time.sleep(60)

signal.signal(signal.SIGALRM, signal.SIG_IGN)
forked_problem(wait, cpu_seconds=1, memory=64 << 20, seconds=2)
"""


def test_child_of_forked_trial_ends_after_its_time_if_the_parent_is_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    assert parent.stdout.read(7) == b"started"
    parent.kill()
    assert parent.communicate(timeout=20)[0] == b""  # ends when the child closes it
