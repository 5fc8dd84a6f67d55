"""The warden and the keepers, which kill processes when their owner exits.

Each runs as a script (`python -I -S warden.py …`) that imports only the standard library, starts
in 20 ms and uses 9 MB. `watch MARK` (the warden) waits until standard input closes, then kills all
processes with the mark. `keep MARK PARENT COMMAND…` (a keeper) starts a command and kills it when
PARENT exits or the keeper receives SIGTERM; on SIGUSR1, the keeper sends SIGTERM to the command.
When the command has exited, the keeper kills the descendants of the command.
"""

import ctypes
import os
import signal
import sys
import time

MARK_VARIABLE = "RAGGRPO_RUN_MARK"
"""Same as `names.ENV_RUN_MARK`, which this script cannot import; a test compares the two."""
SWEEP_SECONDS = 20.0
GRACE_SECONDS = 3.0
"""Seconds the warden waits for the keepers, which also kill descendants without the mark."""
STOP_SIGNAL = signal.SIGUSR1
"""Signal that makes a keeper send SIGTERM to its command."""
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_TERMINAL_SIGNALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTSTP)


def marked_processes(mark: str) -> list[int]:
    """Return the ids of processes with this mark or a mark below it (`mark.…`).

    Excludes the caller and zombies, which have no environment.
    """
    entry_start = f"\0{MARK_VARIABLE}={mark}".encode()
    pids = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                environment = b"\0" + file.read() + b"\0"
        except OSError:  # the process has exited or belongs to another user
            continue
        if entry_start + b"\0" in environment or entry_start + b"." in environment:
            pids.append(int(entry))
    return pids


def sweep(mark: str, timeout_seconds: float = SWEEP_SECONDS) -> list[int]:
    """Kill all processes with this mark; return the survivors after `timeout_seconds`.

    Two consecutive scans must find no process: during exec, the environment of a process is empty.
    """
    deadline = time.monotonic() + timeout_seconds
    empty_scans = 0
    while empty_scans < 2:
        remaining = marked_processes(mark)
        empty_scans = 0 if remaining else empty_scans + 1
        for pid in remaining:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if remaining and time.monotonic() > deadline:
            return remaining
        time.sleep(0.02)
    return []


def watch(mark: str) -> int:
    """Wait until the run exits, which closes standard input, then kill the processes of the run.

    Return 1 if a process survives, else 0.
    """
    for number in (*_TERMINAL_SIGNALS, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 4096):
        continue
    deadline = time.monotonic() + GRACE_SECONDS
    while marked_processes(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    return 1 if sweep(mark) else 0


def keep(mark: str, parent: int, command: list[str]) -> int:
    """Run the command and return its exit code, or 128 + n for signal n.

    As a subreaper, the keeper adopts descendants whose parent exits.
    """
    for number in _TERMINAL_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    child = _start(command)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.signal(STOP_SIGNAL, lambda *_: os.kill(child, signal.SIGTERM))
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # the parent exited before the signal was set up
        os.kill(child, signal.SIGKILL)
    pid, status = os.wait()
    while pid != child:
        pid, status = os.wait()
    signal.signal(STOP_SIGNAL, signal.SIG_IGN)  # the id of the child may be reused now
    sweep(mark)
    _kill_descendants()
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _start(command: list[str]) -> int:
    keeper = os.getpid()
    child = os.fork()
    if child:
        return child
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != keeper:
        os._exit(1)
    for number in _TERMINAL_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error}", file=sys.stderr, flush=True)
    os._exit(127)


def _kill_descendants() -> None:
    """Kill and reap all remaining descendants, with or without the mark."""
    deadline = time.monotonic() + SWEEP_SECONDS
    while time.monotonic() < deadline:
        for pid in _children():
            os.kill(pid, signal.SIGKILL)  # the id is not reused: only the keeper can reap it
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return
        time.sleep(0.02)


def _children() -> list[int]:
    pids = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            pids.append(int(entry))
    return pids


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def main(arguments: list[str]) -> int:
    """Run the warden or a keeper."""
    service, mark, *rest = arguments
    if service == "watch":
        return watch(mark)
    return keep(mark, int(rest[0]), rest[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
