import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from raggrpo_api.forked_trial import MAX_PROBLEM_BYTES, TrialFailed, forked_problem


def problem(problem_of: Callable[[], str], seconds: int = 30) -> str:
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
