"""Child processes of the tests, which never outlive them."""

import ctypes
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

START_SECONDS = 90.0
STOP_SECONDS = 20.0


class DidNotStart(Exception):
    """A program exited or did not become ready; the message has its last lines."""


@dataclass
class Program:
    """A child process that is killed when this process exits."""

    name: str
    command: Sequence[str]
    log_file: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the program and append its output to the log file."""
        with self.log_file.open("ab") as output:
            self.process = subprocess.Popen(
                self.command, stdout=output, stderr=output, preexec_fn=_die_with_parent
            )

    def stop(self) -> None:
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Return when `ready` returns True.

        Raises:
            DidNotStart: The program exited, or was not ready in time.
        """
        deadline = time.monotonic() + START_SECONDS
        while not ready():
            ended = self.process is None or self.process.poll() is not None
            if ended or time.monotonic() > deadline:
                lines = self.log_file.read_text(errors="replace").splitlines()[-15:]
                state = "exited" if ended else f"was not ready after {START_SECONDS:.0f} s"
                raise DidNotStart("\n".join([f"{self.name} {state}:", *lines]))
            time.sleep(0.1)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
