"""The driver as the progress server sees it: a process beside it that can be asked to save."""

import os
import signal


class DriverProcess:
    """The driver as seen from a process beside it."""

    def __init__(self) -> None:
        self.pid = 0
        """0: no driver has said that it runs."""
        self._asked = 0

    def stop(self) -> bool:
        """Ask it once to save and exit (a second signal could hit it on its way out).

        Tells whether it still runs.
        """
        if not self.pid:
            return False
        number = 0 if self._asked == self.pid else signal.SIGTERM
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        self._asked = self.pid
        return True
