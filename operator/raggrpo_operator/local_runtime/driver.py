"""The driver of an attempt as a child process, connected to a Ray head.

In a cluster, Ray's Jobs API starts the driver. On one machine, the servers of that API would cost
ten processes and three seconds of CPU time per head.
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
"""Seconds from SIGTERM, which makes the driver save the last completed step, to SIGKILL."""


class Driver:
    """The driver of an attempt, running or exited."""

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
        driver_env = {**head.env, "RAY_ADDRESS": head.address(), **env}
        log_file = driver_log(head.temp_dir, number)
        self._child = processes.start(f"a{number}", command, driver_env, log_file)
        self._is_stopped = False

    def observe(self) -> AttemptObserved:
        """Return the attempt as Ray's Jobs API would report it."""
        code = self._child.exit_code()
        if code is None:
            return AttemptObserved(self.number, SubmissionStatus.RUNNING)
        if code == 0:
            return AttemptObserved(self.number, SubmissionStatus.SUCCEEDED, exit_code=0)
        if self._is_stopped:
            return AttemptObserved(self.number, SubmissionStatus.STOPPED)
        code = code if code < 128 else 128 - code  # -n for signal n, as in subprocess
        log = last_lines(self._child.log_tail())
        return AttemptObserved(self.number, SubmissionStatus.FAILED, exit_code=code, message=log)

    def stop(self) -> None:
        """Make the driver save a checkpoint and exit; kill the driver after STOP_SECONDS.

        SIGTERM is sent once: a second signal could interrupt the driver while it exits.
        """
        if not self._is_stopped:
            self._is_stopped = True
            self._child.stop()
            asyncio.get_running_loop().call_later(STOP_SECONDS, self._child.process.terminate)

    def terminate(self) -> None:
        """Kill the driver and all processes it started."""
        self._processes.terminate(self._child)


def driver_log(temp_dir: Path, number: AttemptNumber) -> Path:
    """Return the path of the driver log of an attempt."""
    return temp_dir / f"driver-{number}.log"
