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

from raggrpo_trainer.pre_stop import LEAVE_SECONDS, end_ray, main
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


# The first signal is noted, as the driver does while it saves; a second one would end it.
DRIVER = """
import signal
def note(*_):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    print("asked", flush=True)
signal.signal(signal.SIGHUP, note)
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


def test_it_waits_until_the_driver_has_ended() -> None:
    answers = [True, True, False]
    waits: list[float] = []
    with serving(lambda: answers.pop(0), token="secret") as env:
        arguments = ["--head", "127.0.0.1", "--seconds", "30"]
        assert main(arguments, env, clock=lambda: sum(waits), sleep=waits.append) == 0

    assert not answers
    assert len(waits) == 2


def test_it_waits_no_longer_than_told() -> None:
    waits: list[float] = []
    with serving(lambda: True) as env:
        arguments = ["--head", "127.0.0.1", "--seconds", "3"]
        assert main(arguments, env, clock=lambda: sum(waits), sleep=waits.append) == 0
    assert sum(waits) == pytest.approx(3, abs=0.5)


@pytest.mark.parametrize("token", ["", "wrong"])
def test_without_the_token_nothing_is_stopped_and_nothing_waits(token: str, tmp_path: Path) -> None:
    asked: list[bool] = []
    with serving(lambda: bool(asked.append(True)), token="secret") as env:
        arguments = ["--head", "127.0.0.1", "--seconds", "30"]
        assert main(arguments, env | {"RAY_AUTH_TOKEN": token}, processes=tmp_path) == 0
    assert not asked


def test_a_rank_tells_of_a_driver_that_cannot_be_reached(tmp_path: Path) -> None:
    rank, waits = tmp_path / "815", list[float]()
    rank.mkdir()
    (rank / "cmdline").write_text("ray::RankActor.save\0")

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            (rank / "cmdline").write_text("ray::IDLE\0")

    nobody = ["--head", "127.0.0.1", "--seconds", "30"]
    port = {"RAGGRPO_PROGRESS_PORT": "1"}
    assert main(nobody, port, clock=lambda: sum(waits), sleep=sleep, processes=tmp_path) == 0

    assert len(waits) == 3


def waits_beside_a_rank(processes: Path, pid: int) -> list[float]:
    """Return how long the hook waits each time, where a rank lives and nobody answers."""
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


def test_ranks_that_their_driver_left_tell_of_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    waiting_marker(815).touch()

    assert waits_beside_a_rank(tmp_path, 815) == []


def test_ranks_without_a_driver_are_not_waited_for_as_long_as_a_save(tmp_path: Path) -> None:
    assert sum(waits_beside_a_rank(tmp_path, 815)) == pytest.approx(30, abs=0.5)


def test_nobody_there_means_no_waiting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(lambda: True) as env:
        pass
    assert main(["--head", "127.0.0.1", "--seconds", "30"], env, processes=tmp_path) == 0
    assert "refused" in capsys.readouterr().err


def ask(driver: DriverProcess, process: "subprocess.Popen[bytes]") -> None:
    driver.pid = process.pid
    assert driver.stop()
    assert process.stdout is not None
    assert process.stdout.readline() == b"asked\n"


def test_a_driver_is_asked_once_and_seen_until_it_is_gone() -> None:
    driver = DriverProcess()
    assert not driver.stop()  # none has said that it runs
    with make_driver() as process:
        ask(driver, process)
        assert driver.stop()

        assert process.poll() is None
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(10) == -signal.SIGKILL
        assert not driver.stop()


def test_the_next_attempts_driver_is_asked_too() -> None:
    driver = DriverProcess()
    for _ in range(2):
        with make_driver() as process:
            ask(driver, process)


OBEDIENT = "import time; print(flush=True); time.sleep(60)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {OBEDIENT}"


@pytest.mark.parametrize(
    ("command", "ends_by"),
    [
        (["/venv/ray/raylet/raylet", "-c", OBEDIENT], signal.SIGTERM),
        (["/venv/ray/raylet/raylet", "-c", STUBBORN], signal.SIGKILL),
        (["python", "-c", OBEDIENT, "/ray/log_monitor.py"], signal.SIGKILL),
        (["/venv/ray/gcs_server", "-c", OBEDIENT], None),
    ],
    ids=["raylet", "raylet that hangs", "log monitor", "another"],
)
def test_the_raylet_takes_its_leave_and_what_ray_start_waits_for_is_killed(
    command: list[str], ends_by: signal.Signals | None, tmp_path: Path
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

        is_stubborn = STUBBORN in command
        assert (sum(slept) > LEAVE_SECONDS / 2) == is_stubborn, slept
        if ends_by is not None:
            assert process.wait(10) == -ends_by
        else:
            assert process.poll() is None
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
