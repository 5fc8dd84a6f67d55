"""Let a forked child process do first what a library may do with foreign files only within limits.

A fork has the libraries of its parent, whose import takes seconds.
"""

import os
import select
import signal
from collections.abc import Callable
from typing import NoReturn

from .resource_limits import limit_resources

MAX_PROBLEM_BYTES = 2_000
_RETURNED = b"="
"""Start of the text that the function returned."""
_NO_MEMORY = 3
"""Exit code of the child process."""


class TrialFailed(Exception):
    """The child process crashed or exceeded a limit. The message says what happened."""


class TrialKilled(TrialFailed):
    """The child process was killed, usually because memory ran out."""


def forked_problem(
    problem_of: Callable[[], str], *, cpu_seconds: int, memory: int, seconds: int
) -> str:
    """Return the text that a function returns in a child process, of MAX_PROBLEM_BYTES at most.

    The process may use `cpu_seconds` of CPU time, `memory` bytes more than its parent, and take
    `seconds`, also if its parent is killed. The function must not depend on other threads or on
    open files and connections, which the child process does not have. Raises TrialFailed.
    """
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        _run(problem_of, sender, cpu_seconds, memory, seconds)
    os.close(sender)
    try:
        poller = select.poll()  # select() fails for descriptors of 1024 and more
        poller.register(receiver, select.POLLIN)
        is_done = bool(poller.poll(seconds * 1000))
        text = os.read(receiver, MAX_PROBLEM_BYTES) if is_done else b""
    finally:
        os.close(receiver)
        os.kill(child, signal.SIGKILL)  # has no effect on a process that has exited
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if text[:1] == _RETURNED:
        return text[1:].decode(errors="replace")
    if not is_done:
        code = -signal.SIGALRM
    if code == -signal.SIGKILL:
        raise TrialKilled("is killed, usually because memory runs out")
    raise TrialFailed(
        {
            -signal.SIGALRM: f"takes more than {seconds} seconds",
            -signal.SIGXCPU: f"takes more than {cpu_seconds} seconds of CPU time",
            _NO_MEMORY: f"needs more than {memory >> 20:,} MiB of memory",
        }.get(code, f"crashes (exit code {code})")
    )


def _run(
    problem_of: Callable[[], str], sender: int, cpu_seconds: int, memory: int, seconds: int
) -> NoReturn:
    """Run the function in the child process, and exit."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)  # belongs to the event loop of the parent
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.alarm(seconds)
        _close_all_except(sender)
        limit_resources(cpu_seconds, memory)
        text = problem_of().encode(errors="replace")
        os.write(sender, _RETURNED + text[: MAX_PROBLEM_BYTES - 1])
        code = 0
    except MemoryError:
        code = _NO_MEMORY
    finally:
        os._exit(code)


def _close_all_except(sender: int) -> None:
    """Close all inherited descriptors except 0 to 2 and `sender`.

    Otherwise, ports and connections that the parent closes would remain open.
    """
    last = max(map(int, os.listdir("/dev/fd")))
    os.closerange(3, sender)
    os.closerange(sender + 1, last + 1)
