"""`DriverProcess`: the driver as a process that the progress server can stop."""

import os
import signal

POD_TERMINATING = signal.SIGHUP
"""Signal that makes the driver save and exit because at least one pod terminates."""


class DriverProcess:
    """The PID of the driver, and whether the driver has been signaled."""

    def __init__(self) -> None:
        self.pid = 0
        """PID of the driver; 0 until a driver has registered."""
        self._signaled_pid = 0

    def stop(self) -> bool:
        """Signal the driver to save and exit; return whether it is still running.

        The signal is sent once: a second one could interrupt the exit.
        """
        if not self.pid:
            return False
        signal_number = 0 if self._signaled_pid == self.pid else POD_TERMINATING
        try:
            os.kill(self.pid, signal_number)
        except ProcessLookupError:
            return False
        self._signaled_pid = self.pid
        return True
