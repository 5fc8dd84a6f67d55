"""Keeps the driver's output beside the attempt's other records, where it outlives the pod.

Ray writes it to a file of the head. A thread of its own copies what that file grows by, so that a
volume that hangs or is full holds up nobody.
"""

import logging
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger(__name__)

COPY_SECONDS = 5.0
"""What a driver that is killed may lose of its log."""
CLOSE_SECONDS = 10.0


@contextmanager
def kept_output(target: Path) -> Iterator[None]:
    """Copy to this file what the process prints, where that goes to a file and to no terminal."""
    source = Path(os.readlink("/proc/self/fd/1"))
    if not source.is_file():
        yield
        return
    copy = LogCopy(source, target)
    copy.start()
    try:
        yield
    finally:
        copy.close()


class LogCopy(threading.Thread):
    """Copies a growing file until it is closed."""

    def __init__(self, source: Path, target: Path, every_seconds: float = COPY_SECONDS) -> None:
        super().__init__(name="driver-log", daemon=True)
        self._source, self._target, self._every = source, target, every_seconds
        self._closing = threading.Event()

    def close(self) -> None:
        """Copy the rest; a folder that hangs is left behind."""
        self._closing.set()
        self.join(CLOSE_SECONDS)

    def run(self) -> None:
        """Begin anew: an older log of this attempt's number is that of a job that was deleted."""
        try:
            self._target.parent.mkdir(parents=True, exist_ok=True)
            with self._source.open("rb") as source, self._target.open("wb") as target:
                while not self._closing.wait(self._every):
                    shutil.copyfileobj(source, target)
                    target.flush()
                shutil.copyfileobj(source, target)
        except OSError as error:
            log.error("the log is not kept: %s; training goes on", error)
