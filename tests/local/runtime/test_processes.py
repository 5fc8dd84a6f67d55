import functools
import json
import operator
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from raggrpo_api import names
from raggrpo_operator.errors import OperatorError
from raggrpo_operator.local_runtime import warden
from raggrpo_operator.local_runtime.processes import Processes, exit_text, free_ports, is_free
from support.processes import process_tree
from support.processes.waiting import wait_for

DEADLINE_SECONDS = 60


class Owner:
    """A run in a separate process."""

    def __init__(self, logs: Path, *options: str) -> None:
        self.process = subprocess.Popen(
            # The caller of the tests may ignore SIGHUP, as nohup does; children inherit that.
            ["env", "--default-signal", sys.executable, process_tree.__file__, str(logs), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        announced = json.loads(self.process.stdout.readline())
        self.mark = announced["mark"]
        self.keeper = announced["keeper"]
        self.warden = announced["warden"]
        self.nameless = announced["nameless"]

    def is_gone(self) -> bool:
        return not warden.marked_processes(self.mark)

    def is_gone_with_unmarked(self) -> bool:
        return self.is_gone() and not Path(f"/proc/{self.nameless}").exists()

    def close(self) -> None:
        if Path(f"/proc/{self.nameless}").exists():
            os.kill(self.nameless, signal.SIGKILL)
        self.process.kill()
        self.process.communicate()
        assert warden.sweep(self.mark) == []


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    owner = Owner(tmp_path)
    yield owner
    owner.close()


def test_process_mark_variable_matches_api_constant() -> None:
    assert warden.MARK_VARIABLE == names.ENV_RUN_MARK


def test_child_process_inherits_mark_and_exit_code_is_observed(
    processes: Processes, tmp_path: Path
) -> None:
    command = ["sh", "-c", f"echo ${names.ENV_RUN_MARK}; exit 3"]
    child = processes.start("probe", command, os.environ, tmp_path / "probe.log")
    wait_for(lambda: child.exit_code() is not None)
    assert child.exit_code() == 3
    assert child.log_tail() == f"{processes.mark}.probe"


def test_exit_text_names_signal_of_killed_child(processes: Processes, tmp_path: Path) -> None:
    child = processes.start("probe", ["sh", "-c", "kill -9 $$"], os.environ, tmp_path / "log")
    wait_for(lambda: child.exit_code() is not None)
    assert exit_text(child.exit_code() or 0) == "signal 9 (SIGKILL)"


def test_unknown_command_is_named_in_log(processes: Processes, tmp_path: Path) -> None:
    child = processes.start("probe", ["/no/such/program"], os.environ, tmp_path / "log")
    wait_for(lambda: child.exit_code() is not None)
    assert child.exit_code() == 127
    assert "/no/such/program" in child.log_tail()


def test_child_start_raises_operator_error_when_log_folder_is_unwritable(
    processes: Processes, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OperatorError, match="probe cannot be started"):
        processes.start("probe", ["true"], os.environ, tmp_path / "file" / "log")


def test_stopping_one_child_does_not_affect_others(processes: Processes, tmp_path: Path) -> None:
    first = processes.start("c1", ["sleep", "1000"], os.environ, tmp_path / "a")
    second = processes.start("c10", ["sleep", "1000"], os.environ, tmp_path / "b")
    processes.terminate(first)
    assert warden.marked_processes(first.mark) == []
    assert second.exit_code() is None


def test_descendants_are_killed_when_command_exits(processes: Processes, tmp_path: Path) -> None:
    command = ["sh", "-c", "setsid sleep 1000 & setsid sleep 1000 & exit 5"]
    child = processes.start("family", command, os.environ, tmp_path / "log")
    wait_for(lambda: child.exit_code() is not None)
    assert child.exit_code() == 5
    assert warden.marked_processes(child.mark) == []


def test_child_that_ignores_stop_signal_is_killed(processes: Processes, tmp_path: Path) -> None:
    stubborn = "trap '' TERM INT HUP; kill -STOP $$"
    child = processes.start("stubborn", ["sh", "-c", stubborn], os.environ, tmp_path / "log")
    processes.terminate(child)
    assert warden.marked_processes(child.mark) == []


def warden_of(processes: Processes) -> int:
    """Return the pid of the warden. During exec the environment of a process reads as empty."""
    mark = f"{processes.mark}.warden"
    wait_for(lambda: warden.marked_processes(mark) != [])
    [pid] = warden.marked_processes(mark)
    return pid


def test_lost_warden_is_replaced(processes: Processes) -> None:
    processes.ensure_warden()
    first = warden_of(processes)
    os.kill(first, signal.SIGKILL)

    def is_replaced() -> bool:
        processes.ensure_warden()  # repeated as in every round: an exiting warden counts as alive
        return warden.marked_processes(f"{processes.mark}.warden") not in ([], [first])

    wait_for(is_replaced)


def test_process_sweep_scans_twice_before_reporting_success(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = processes.start("sleeper", ["sleep", "1000"], os.environ, tmp_path / "log")
    scan = warden.marked_processes
    blind = [True]
    monkeypatch.setattr(
        warden, "marked_processes", lambda mark: [] if blind and blind.pop() else scan(mark)
    )
    wait_for(lambda: scan(child.mark) != [])
    assert warden.sweep(child.mark) == []

    assert scan(child.mark) == []


@pytest.mark.parametrize("victims", ["run", "run warden", "run keeper", "warden run", "keeper run"])
def test_children_exit_when_run_is_killed(victims: str, owner: Owner) -> None:
    pids = {"run": owner.process.pid, "warden": owner.warden, "keeper": owner.keeper}
    for victim in victims.split():
        os.kill(pids[victim], signal.SIGKILL)
    wait_for(owner.is_gone)


@pytest.mark.parametrize("victims", ["run", "run warden", "warden run"])
def test_keeper_kills_descendants_without_mark(victims: str, owner: Owner) -> None:
    pids = {"run": owner.process.pid, "warden": owner.warden}
    for victim in victims.split():
        os.kill(pids[victim], signal.SIGKILL)
    wait_for(owner.is_gone_with_unmarked)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_children_exit_when_run_is_signaled(number: signal.Signals, owner: Owner) -> None:
    owner.process.send_signal(number)
    wait_for(owner.is_gone)


def test_children_exit_on_hangup_when_tests_run_under_nohup(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup
    try:
        owner = Owner(tmp_path)
    finally:
        signal.signal(signal.SIGHUP, before)
    try:
        owner.process.send_signal(signal.SIGHUP)
        wait_for(owner.is_gone)
    finally:
        owner.close()


def signals(pid: int, *masks: str) -> int:
    """Return the union of signal masks of a process; bit n - 1 stands for signal n."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":\t", 1) for line in lines)
    return functools.reduce(operator.or_, (int(fields[mask], 16) for mask in masks))


def test_children_run_in_separate_sessions(processes: Processes, tmp_path: Path) -> None:
    child = processes.start("probe", ["sleep", "1000"], os.environ, tmp_path / "log")
    guard = warden_of(processes)
    sessions = {os.getsid(pid) for pid in (child.process.pid, guard, os.getpid())}
    assert len(sessions) == 3


def test_terminal_signals_do_not_reach_children_or_warden(owner: Owner) -> None:
    numbers = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP)
    mask = sum(1 << (number - 1) for number in numbers)
    for pid in (owner.warden, owner.keeper):
        wait_for(lambda pid=pid: signals(pid, "SigIgn") & mask == mask)
        for number in numbers:
            os.kill(pid, number)
    wait_for(lambda: bool(signals(owner.warden, "SigIgn") >> (signal.SIGTERM - 1) & 1))
    os.kill(owner.warden, signal.SIGTERM)
    wait_for(lambda: not signals(owner.warden, "SigPnd", "ShdPnd"))

    assert warden.marked_processes(f"{owner.mark}.warden") == [owner.warden]
    assert owner.keeper in warden.marked_processes(owner.mark)


def test_children_exit_when_run_raises(tmp_path: Path) -> None:
    owner = Owner(tmp_path, "raise")
    wait_for(owner.is_gone)
    owner.close()


def test_free_ports_are_distinct_and_allowed_for_gcs() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        ports = [port for _ in range(10) for port in free_ports(50)]

        assert not is_free(taken)
    assert all(len(set(ports[i : i + 50])) == 50 for i in range(0, 500, 50))
    assert all(not 10_002 <= port <= 19_999 for port in ports)
