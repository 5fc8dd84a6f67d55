"""Child processes of a run, which have the mark of the run in their environment.

A warden kills these processes if the run exits. Processes are killed only by process id.
"""

import logging
import os
import random
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from raggrpo_api.names import ENV_RUN_MARK
from raggrpo_operator.errors import PermanentError, TransientError

from . import warden
from .private_files import private_folder, private_opener

log = logging.getLogger(__name__)
Model = TypeVar("Model", bound=BaseModel)

WARDEN = (sys.executable, "-I", "-S", warden.__file__)
TERMINATE_SECONDS = 10.0
PORTS = range(20_000, 32_000)
"""Ports outside Ray's default range for workers and below the ephemeral ports."""


@dataclass(frozen=True, slots=True)
class Child:
    """A started command; `process` is its keeper, which exits with the exit code of the command."""

    name: str
    mark: str
    log_file: Path
    process: subprocess.Popen[bytes]

    def exit_code(self) -> int | None:
        """Return the exit code (128 + n for signal n), or None while the command is running."""
        code = self.process.poll()
        return code if code is None or code >= 0 else 128 - code

    def stop(self) -> None:
        """Send SIGTERM to the command. To kill the command, use `Processes.terminate`."""
        self.process.send_signal(warden.STOP_SIGNAL)

    def log_tail(self, lines: int = 5) -> str:
        """Return the last lines of the command's output."""
        return tail(self.log_file, lines)


class Processes:
    """The processes of a run.

    Start children from the main thread: the kernel kills a child when the thread that started it
    exits.
    """

    def __init__(self, mark: str = "") -> None:
        self.mark = mark or uuid.uuid4().hex
        self._children: list[Child] = []
        self._warden: subprocess.Popen[bytes] | None = None

    def start(
        self, name: str, command: Sequence[str], env: Mapping[str, str], log_file: Path
    ) -> Child:
        """Start a command in its own session, with its output appended to the log file.

        Raises OperatorError if the command cannot be started.
        """
        self.ensure_warden()
        mark = f"{self.mark}.{name}"
        keeper = [*WARDEN, "keep", mark, str(os.getpid()), *command]
        try:
            private_folder(log_file.parent)
            with open(log_file, "ab", opener=private_opener) as output:
                process = subprocess.Popen(
                    keeper,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**env, ENV_RUN_MARK: mark},
                    start_new_session=True,
                )
        except OSError as error:
            raise TransientError(f"{name} cannot be started: {error}") from error
        child = Child(name, mark, log_file, process)
        self._children.append(child)
        return child

    def terminate(self, child: Child) -> None:
        """Kill a child and all processes it started."""
        child.process.terminate()
        try:
            child.process.wait(TERMINATE_SECONDS)
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()
        sweep(child.mark)  # a killed keeper leaves its processes running
        if child in self._children:
            self._children.remove(child)

    def ensure_warden(self) -> None:
        """Ensure that the warden, which kills the children if this process exits, is running."""
        if self._warden is not None and self._warden.poll() is None:
            return
        if self._warden is not None:
            log.warning("the warden exited with code %s: restarting it", self._warden.returncode)
            self._close_warden()
        self._warden = subprocess.Popen(
            [*WARDEN, "watch", self.mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, ENV_RUN_MARK: f"{self.mark}.warden"},
            start_new_session=True,
        )

    def terminate_all(self) -> None:
        """Kill all processes of the run, the warden last."""
        for child in self._children:
            child.process.terminate()
        for child in list(self._children):
            self.terminate(child)
        if self._warden is not None:
            self._close_warden()
        sweep(self.mark)

    def _close_warden(self) -> None:
        assert self._warden is not None
        assert self._warden.stdin is not None
        self._warden.stdin.close()
        self._warden.kill()
        self._warden.wait()
        self._warden = None


def sweep(mark: str) -> None:
    """Kill every process with this mark. Raises OperatorError if a process survives."""
    if survivors := warden.sweep(mark):
        raise PermanentError(f"processes {survivors} cannot be killed")


def free_ports(number: int) -> list[int]:
    """Return distinct free TCP ports of the loopback interface."""
    ports = list(islice(filter(is_free, random.sample(PORTS, 100)), number))
    if len(ports) < number:
        raise TransientError(
            f"fewer than {number} ports between {PORTS.start} and {PORTS.stop} are free"
        )
    return ports


def is_free(port: int) -> bool:
    """Return whether nothing listens on this port of the loopback interface."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def tail(file: Path, lines: int) -> str:
    """Return the last lines of a text file, or "" if it does not exist."""
    if not file.exists():
        return ""
    with file.open("rb") as stream:
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - 16_384))
        text = stream.read().decode(errors="replace")
    return "\n".join(text.splitlines()[-lines:])


def read_result(file: Path, model: type[Model]) -> Model | None:
    """Return the result that a process wrote to a file, or None if it is missing or invalid."""
    try:
        return model.model_validate_json(file.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def exit_text(code: int) -> str:
    """Return an exit code as text: `exit code 3`, or `signal 9 (SIGKILL)` for 137 and -9."""
    code = 128 - code if code < 0 else code
    if code <= 128 or code - 128 not in set(signal.Signals):
        return f"exit code {code}"
    return f"signal {code - 128} ({signal.Signals(code - 128).name})"
