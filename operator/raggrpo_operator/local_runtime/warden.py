"""Two tiny services that kill processes once their owner is gone; they decide nothing.

Run as a script (`python -I -S warden.py …`) with only the standard library, each takes 20 ms to
start and 9 MB. `watch MARK` waits until standard input closes, then kills every process that
carries the mark. `keep MARK PARENT COMMAND…` starts a command and kills it when PARENT dies or
SIGTERM comes, while SIGUSR1 passes SIGTERM on; however it ends, its descendants end with it.
"""

import ctypes
import os
import signal
import sys
import time

MARK_VARIABLE = "RAGGRPO_RUN_MARK"
"""Same as names.ENV_RUN_MARK, which this script cannot import; a test compares them."""
PATIENCE_SECONDS = 20.0
GRACE_SECONDS = 3.0
"""Time the warden gives the keepers first, since they also reach descendants without the mark."""
STOP_SIGNAL = signal.SIGUSR1
"""Asks a keeper to ask its command to end."""
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_TERMINAL_SIGNALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTSTP)


def carriers(mark: str) -> list[int]:
    """Return the ids of processes that inherited this mark or one below it (`mark.…`).

    Excludes zombies, which have no environment, and the caller.
    """
    wanted = f"\0{MARK_VARIABLE}={mark}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                environment = b"\0" + file.read() + b"\0"
        except OSError:  # it has ended, or belongs to another user
            continue
        if wanted + b"\0" in environment or wanted + b"." in environment:
            found.append(int(entry))
    return found


def sweep(mark: str, patience_seconds: float = PATIENCE_SECONDS) -> list[int]:
    """SIGKILL every process with this mark until none is left; return the survivors.

    Two searches in a row must find none: during exec a process's environment reads as empty.
    """
    deadline = time.monotonic() + patience_seconds
    missed = 0
    while missed < 2:
        left = carriers(mark)
        missed = 0 if left else missed + 1
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if left and time.monotonic() > deadline:
            return left
        time.sleep(0.02)
    return []


def watch(mark: str) -> int:
    """Wait for the end of the run, which holds the other end of standard input, then sweep."""
    for number in (*_TERMINAL_SIGNALS, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 4096):
        continue
    deadline = time.monotonic() + GRACE_SECONDS
    while carriers(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    return 1 if sweep(mark) else 0


def keep(mark: str, parent: int, command: list[str]) -> int:
    """Run the command and return its exit code, 128 + n if signal n killed it.

    As a subreaper, the keeper also adopts descendants that lose their parent.
    """
    for number in _TERMINAL_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    child = _start(command)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.signal(STOP_SIGNAL, lambda *_: os.kill(child, signal.SIGTERM))
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before the signal was set up
        os.kill(child, signal.SIGKILL)
    ended, status = os.wait()
    while ended != child:
        ended, status = os.wait()
    signal.signal(STOP_SIGNAL, signal.SIG_IGN)  # another process may get the child's id now
    sweep(mark)
    _end_descendants()
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


def _end_descendants() -> None:
    """Kill and reap the keeper's remaining descendants, marked or not."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        for pid in _children():
            os.kill(pid, signal.SIGKILL)  # the id cannot have been reused: only we can reap it
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return
        time.sleep(0.02)


def _children() -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            found.append(int(entry))
    return found


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def main(arguments: list[str]) -> int:
    """Run one of the two services."""
    service, mark, *rest = arguments
    if service == "watch":
        return watch(mark)
    return keep(mark, int(rest[0]), rest[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
