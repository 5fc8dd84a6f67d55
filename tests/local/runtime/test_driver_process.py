"""Driver processes of a local run, with other programs in place of the trainer."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from raggrpo_operator.core.lifecycle.observed import AttemptObserved, SubmissionStatus
from raggrpo_operator.local_runtime import driver as module
from raggrpo_operator.local_runtime.driver import Driver, driver_log
from raggrpo_operator.local_runtime.processes import Processes, free_ports
from raggrpo_operator.local_runtime.ray_head import RAY, RayHead
from support.processes.waiting import wait_for

COUNTS_SIGNALS = """
import signal, sys, time
signals = []
signal.signal(signal.SIGTERM, lambda *_: signals.append(1))
print("ready", flush=True)
while not signals:
    time.sleep(0.01)
time.sleep(0.5)
print(len(signals))
sys.exit(1)
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(1000)
"""


@pytest.fixture
async def head(tmp_path: Path, processes: Processes) -> AsyncIterator[RayHead]:
    child = processes.start("c1", ["sleep", "1000"], os.environ, tmp_path / "log")
    [port] = free_ports(1)
    address = tmp_path / RAY / "ray_current_cluster"
    address.parent.mkdir()
    address.write_text("127.0.0.1:1\n")
    ray_head = RayHead(1, child, tmp_path, port, {**os.environ, "RAY_AUTH_TOKEN": "token"})
    yield ray_head
    await ray_head.session.close()


def make_driver(processes: Processes, head: RayHead, program: str) -> Driver:
    return Driver(processes, head, 3, {"MORE": "more"}, (sys.executable, "-c", program))


def end_of(driver: Driver) -> AttemptObserved:
    wait_for(lambda: driver.observe().status.is_terminal)
    return driver.observe()


def wait_until_ready(head: RayHead) -> None:
    wait_for(lambda: "ready" in driver_log(head.temp_dir, 3).read_text())


@pytest.mark.parametrize(
    ("program", "status", "code", "message"),
    [
        ("print('done')", SubmissionStatus.SUCCEEDED, 0, ""),
        ("print('a\\nb\\nc\\nd\\ne\\nf'); exit(3)", SubmissionStatus.FAILED, 3, "b\nc\nd\ne\nf"),
        ("import os; os.kill(os.getpid(), 9)", SubmissionStatus.FAILED, -9, ""),
    ],
)
async def test_driver_exit_is_reported_with_last_log_lines(
    head: RayHead,
    processes: Processes,
    program: str,
    status: SubmissionStatus,
    code: int,
    message: str,
) -> None:
    observed = end_of(make_driver(processes, head, program))

    assert (observed.number, observed.status, observed.exit_code, observed.message) == (
        3,
        status,
        code,
        message,
    )


async def test_driver_receives_head_address_and_environment(
    head: RayHead, processes: Processes
) -> None:
    names = ("RAY_ADDRESS", "RAY_AUTH_TOKEN", "MORE")
    program = f"import os; print(*map(os.environ.get, {names}))"

    end_of(make_driver(processes, head, program))

    assert driver_log(head.temp_dir, 3).read_text() == "127.0.0.1:1 token more\n"


async def test_repeated_stop_sends_one_signal_to_driver(
    head: RayHead, processes: Processes
) -> None:
    driver = make_driver(processes, head, COUNTS_SIGNALS)
    wait_until_ready(head)
    driver.stop()
    await asyncio.sleep(0.2)
    driver.stop()

    assert end_of(driver) == AttemptObserved(3, SubmissionStatus.STOPPED)
    assert driver_log(head.temp_dir, 3).read_text().split() == ["ready", "1"]


async def test_driver_is_killed_when_stop_times_out(
    head: RayHead, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STOP_SECONDS", 0.5)
    driver = make_driver(processes, head, STUBBORN)
    wait_until_ready(head)
    driver.stop()
    await asyncio.sleep(0.1)
    assert driver.observe().status is SubmissionStatus.RUNNING
    await asyncio.sleep(0.6)

    assert end_of(driver).status is SubmissionStatus.STOPPED


async def test_driver_descendants_are_killed_when_driver_exits(
    head: RayHead, processes: Processes
) -> None:
    program = (
        "import subprocess; child = subprocess.Popen(['sleep', '1000'], env={}); print(child.pid)"
    )
    end_of(make_driver(processes, head, program))

    nameless = int(driver_log(head.temp_dir, 3).read_text())
    assert not psutil.pid_exists(nameless)


async def test_driver_terminate_kills_driver_without_stop_signal(
    head: RayHead, processes: Processes
) -> None:
    driver = make_driver(processes, head, STUBBORN)
    wait_until_ready(head)

    driver.terminate()

    assert driver.observe().exit_code == -9
