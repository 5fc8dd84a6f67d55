import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from raggrpo_trainer.pre_stop import RAYLET_EXIT_SECONDS, end_ray, main
from raggrpo_trainer.progress.driver_process import DriverProcess
from raggrpo_trainer.progress.progress_server import ProgressServer
from raggrpo_trainer.ranks.waiting_marker import waiting_marker


@contextmanager
def serving(stop_driver: Callable[[], bool], token: str = "") -> Iterator[dict[str, str]]:
    server = ProgressServer(0, token=token, stop_driver=stop_driver)
    try:
        yield {"RAGGRPO_PROGRESS_PORT": str(server.port), "RAY_AUTH_TOKEN": token}
    finally:
        server.close()


# Handles the first signal, as a driver that saves; a second signal would terminate the process.
DRIVER = """
import signal
def handle(*_):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    print("requested", flush=True)
signal.signal(signal.SIGHUP, handle)
print("ready", flush=True)
while True:
    signal.pause()
"""


@contextmanager
def make_driver() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", DRIVER], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_pre_stop_hook_waits_until_driver_exits() -> None:
    answers = [True, True, False]
    waits: list[float] = []
    with serving(lambda: answers.pop(0), token="secret") as env:
        arguments = ["--head", "127.0.0.1", "--seconds", "30"]
        assert main(arguments, env, clock=lambda: sum(waits), sleep=waits.append) == 0

    assert not answers
    assert len(waits) == 2


def test_pre_stop_hook_waits_at_most_configured_seconds() -> None:
    waits: list[float] = []
    with serving(lambda: True) as env:
        arguments = ["--head", "127.0.0.1", "--seconds", "3"]
        assert main(arguments, env, clock=lambda: sum(waits), sleep=waits.append) == 0
    assert sum(waits) == pytest.approx(3, abs=0.5)


@pytest.mark.parametrize("token", ["", "wrong"])
def test_pre_stop_hook_returns_immediately_without_valid_token(token: str, tmp_path: Path) -> None:
    requests: list[bool] = []
    with serving(lambda: bool(requests.append(True)), token="secret") as env:
        arguments = ["--head", "127.0.0.1", "--seconds", "30"]
        assert main(arguments, env | {"RAY_AUTH_TOKEN": token}, processes=tmp_path) == 0
    assert not requests


def test_pre_stop_hook_waits_for_live_rank_when_driver_is_unreachable(tmp_path: Path) -> None:
    rank = tmp_path / "815"
    waits: list[float] = []
    rank.mkdir()
    (rank / "cmdline").write_text("ray::RankActor.save\0")

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            (rank / "cmdline").write_text("ray::IDLE\0")

    arguments = ["--head", "127.0.0.1", "--seconds", "30"]
    closed_port = {"RAGGRPO_PROGRESS_PORT": "1"}
    assert (
        main(arguments, closed_port, clock=lambda: sum(waits), sleep=sleep, processes=tmp_path) == 0
    )

    assert len(waits) == 3


def waits_with_living_rank(processes: Path, pid: int) -> list[float]:
    """Return the hook's waits if a rank is alive and the progress server is unreachable."""
    (processes / str(pid)).mkdir()
    (processes / str(pid) / "cmdline").write_text("ray::RankActor.train\0")
    waits: list[float] = []
    main(
        ["--head", "127.0.0.1", "--seconds", "300"],
        {"RAGGRPO_PROGRESS_PORT": "1"},
        clock=lambda: sum(waits),
        sleep=waits.append,
        processes=processes,
    )
    return waits


def test_pre_stop_hook_ignores_rank_waiting_for_next_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    waiting_marker(815).touch()

    assert waits_with_living_rank(tmp_path, 815) == []


def test_pre_stop_hook_waits_for_live_rank_at_most_30_seconds(tmp_path: Path) -> None:
    assert sum(waits_with_living_rank(tmp_path, 815)) == pytest.approx(30, abs=0.5)


def test_pre_stop_hook_returns_immediately_without_server_and_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(lambda: True) as env:
        pass
    assert main(["--head", "127.0.0.1", "--seconds", "30"], env, processes=tmp_path) == 0
    assert "refused" in capsys.readouterr().err


def request_stop(driver: DriverProcess, process: "subprocess.Popen[bytes]") -> None:
    driver.pid = process.pid
    assert driver.stop()
    assert process.stdout is not None
    assert process.stdout.readline() == b"requested\n"


def test_driver_stop_signals_process_once_until_exit() -> None:
    driver = DriverProcess()
    assert not driver.stop()  # none has registered
    with make_driver() as process:
        request_stop(driver, process)
        assert driver.stop()

        assert process.poll() is None
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(10) == -signal.SIGKILL
        assert not driver.stop()


def test_driver_stop_also_signals_driver_of_next_attempt() -> None:
    driver = DriverProcess()
    for _ in range(2):
        with make_driver() as process:
            request_stop(driver, process)


TERMINABLE = "import time; print(flush=True); time.sleep(60)"
HANGING = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {TERMINABLE}"


@pytest.mark.parametrize(
    ("command", "signal_number"),
    [
        (["/venv/ray/raylet/raylet", "-c", TERMINABLE], signal.SIGTERM),
        (["/venv/ray/raylet/raylet", "-c", HANGING], signal.SIGKILL),
        (["python", "-c", TERMINABLE, "/ray/log_monitor.py"], signal.SIGKILL),
        (["/venv/ray/gcs_server", "-c", TERMINABLE], None),
    ],
    ids=["raylet", "hanging raylet", "log monitor", "other process"],
)
def test_raylet_is_terminated_and_killed_only_if_it_hangs(
    command: list[str], signal_number: signal.Signals | None, tmp_path: Path
) -> None:
    process = subprocess.Popen(command, executable=sys.executable, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        (tmp_path / str(process.pid)).symlink_to(f"/proc/{process.pid}")
        (tmp_path / "uptime").touch()

        slept: list[float] = []

        def sleep(seconds: float) -> None:
            slept.append(seconds)
            time.sleep(seconds)

        end_ray(tmp_path, sleep)

        is_hanging = HANGING in command
        assert (sum(slept) > RAYLET_EXIT_SECONDS / 2) == is_hanging, slept
        if signal_number is not None:
            assert process.wait(10) == -signal_number
        else:
            assert process.poll() is None
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
