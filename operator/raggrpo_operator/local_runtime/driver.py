"""An attempt's driver as a child process, connected to a Ray head. Does not judge how it ends.

In a cluster, Ray's Jobs API runs drivers. Here it would cost ten processes and three seconds of a
processor for each head, only to start one more process and to tell how that ended.
"""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from raggrpo_api.fields.base import AttemptNumber
from raggrpo_operator.core.lifecycle.observed import AttemptObserved, SubmissionStatus
from raggrpo_operator.ray_jobs import last_lines

from .processes import Processes
from .ray_head import RayHead

COMMAND = (sys.executable, "-m", "raggrpo_trainer")
STOP_SECONDS = 30
"""From a driver's SIGTERM to its SIGKILL: it saves the last finished step in between."""


class Driver:
    """The driver of one attempt, running or ended."""

    def __init__(
        self,
        processes: Processes,
        head: RayHead,
        number: AttemptNumber,
        env: Mapping[str, str],
        command: Sequence[str] = COMMAND,
    ) -> None:
        self.number = number
        self._processes = processes
        given = {**head.env, "RAY_ADDRESS": head.address(), **env}
        log_file = driver_log(head.temp_dir, number)
        self._child = processes.start(f"a{number}", command, given, log_file)
        self._is_stopped = False

    def observe(self) -> AttemptObserved:
        """Return the attempt as Ray's Jobs API would tell it."""
        code = self._child.exit_code()
        if code is None:
            return AttemptObserved(self.number, SubmissionStatus.RUNNING)
        if code == 0:
            return AttemptObserved(self.number, SubmissionStatus.SUCCEEDED, exit_code=0)
        if self._is_stopped:
            return AttemptObserved(self.number, SubmissionStatus.STOPPED)
        code = code if code < 128 else 128 - code  # of a signal, as subprocess has it
        said = last_lines(self._child.log_tail())
        return AttemptObserved(self.number, SubmissionStatus.FAILED, exit_code=code, message=said)

    def stop(self) -> None:
        """Ask the driver to save and exit; one that does not is killed.

        It is asked only once: a second signal could hit it on its way out.
        """
        if not self._is_stopped:
            self._is_stopped = True
            self._child.stop()
            asyncio.get_running_loop().call_later(STOP_SECONDS, self._child.process.terminate)

    def terminate(self) -> None:
        """End the driver and everything that it started."""
        self._processes.terminate(self._child)


def driver_log(temp_dir: Path, number: AttemptNumber) -> Path:
    """Return the file with the output of an attempt's driver, which can be read at any time."""
    return temp_dir / f"driver-{number}.log"
