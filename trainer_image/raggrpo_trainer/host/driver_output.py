"""Copy the logs of drivers to the output of the Ray head, where log collectors and kubectl read."""

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

POLL_SECONDS = 1.0
MAX_CHUNK = 1024 * 1024
"""Maximum bytes that are copied from one file at a time."""


class DriverOutput:
    """Copies what is appended to files; `find` returns the files, whose number may grow."""

    def __init__(self, find: Callable[[], Iterable[Path]], output: BinaryIO) -> None:
        self._find, self._output = find, output
        self._offsets: dict[Path, int] = {}

    def copy(self) -> None:
        """Copy the complete lines that were appended since the last call."""
        for file in sorted(self._find()):
            while self._copy_chunk(file):
                pass
        self._output.flush()

    def start(self) -> None:
        """Copy in a thread until the process exits."""
        threading.Thread(target=self._run, name="driver-output", daemon=True).start()

    def _copy_chunk(self, file: Path) -> bool:
        """Copy one chunk; return whether more may follow."""
        offset = self._offsets.get(file, 0)
        with file.open("rb") as log:
            log.seek(offset)
            chunk = log.read(MAX_CHUNK)
        is_longer = len(chunk) == MAX_CHUNK
        complete = len(chunk) if is_longer else chunk.rfind(b"\n") + 1
        self._output.write(chunk[:complete])
        self._offsets[file] = offset + complete
        return is_longer

    def _run(self) -> None:
        while True:
            try:
                self.copy()
            except OSError as error:  # the file may be unreadable for a moment; the log has it
                self._output.write(f"driver output: {error}\n".encode())
            time.sleep(POLL_SECONDS)
