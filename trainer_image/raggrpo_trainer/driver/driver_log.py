"""Copy the driver's output to the attempt's folder, where the copy outlives the pod.

Standard output is a file on the Ray head. A separate thread copies it as it grows, so a hanging or
full volume blocks nothing else.
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
"""Interval between copies; a killed driver loses at most the log of one interval."""
CLOSE_SECONDS = 10.0
"""Maximum time for which an exiting driver waits for the last copy."""


@contextmanager
def mirrored_output(target: Path) -> Iterator[None]:
    """Copy this process's output to `target`, if standard output is a file."""
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
    """Copies a growing file until `close` is called."""

    def __init__(self, source: Path, target: Path, every_seconds: float = COPY_SECONDS) -> None:
        super().__init__(name="driver-log", daemon=True)
        self._source = source
        self._target = target
        self._every_seconds = every_seconds
        self._closing = threading.Event()

    def close(self) -> None:
        """Request the last copy and wait for it, at most CLOSE_SECONDS."""
        self._closing.set()
        self.join(CLOSE_SECONDS)

    def run(self) -> None:
        """Copy until `close` is called; overwrite a log left by a deleted job at the same path."""
        try:
            self._target.parent.mkdir(parents=True, exist_ok=True)
            with self._source.open("rb") as source, self._target.open("wb") as target:
                while not self._closing.wait(self._every_seconds):
                    shutil.copyfileobj(source, target)
                    target.flush()
                shutil.copyfileobj(source, target)
        except OSError as error:
            log.error("cannot copy the driver's log: %s; training continues", error)
