"""The driver as the progress server sees it: a process that can be asked to save and exit."""

import os
import signal

POD_TERMINATING = signal.SIGHUP
"""Asks the driver to save and exit because a pod ends, and maybe that pod alone."""


class DriverProcess:
    """The driver's PID, and whether it has been asked to stop."""

    def __init__(self) -> None:
        self.pid = 0
        """0 until a driver has registered."""
        self._asked = 0

    def stop(self) -> bool:
        """Ask the driver to save and exit; return whether it still runs.

        The signal is sent only once: a second one could hit the driver on its way out.
        """
        if not self.pid:
            return False
        number = 0 if self._asked == self.pid else POD_TERMINATING
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        self._asked = self.pid
        return True
