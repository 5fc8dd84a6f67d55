"""Progress of a process: counted in threads, printed and written to a file once per interval."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from raggrpo_api.fields.text import one_line
from raggrpo_api.trainer.staging import StagingProgress, progress_text

from .folder import write_json

INTERVAL_SECONDS = 1.0
PRINT_SECONDS = 5.0


class ProgressCounter:
    """Counts bytes; methods may be called in any thread."""

    def __init__(self, file: Path | None, verb: str = "Staging") -> None:
        self._file, self._verb = file, verb
        self._lock = threading.Lock()
        self._field = self._message = ""
        self._done = self._total = self._transferred = 0
        self._started = time.monotonic()
        self._is_finished = threading.Event()

    def start(self, field: str) -> None:
        """Start a source."""
        with self._lock:
            self._field, self._message = field, ""

    def expect(self, total: int, done: int) -> None:
        """Add the size of a source, of which `done` bytes are on disk."""
        with self._lock:
            self._message = ""
            self._total += total
            self._done += done

    def add(self, number: int) -> None:
        """Add received or sent bytes."""
        with self._lock:
            self._done += number
            self._transferred += number

    @contextmanager
    def upload(self, size: int) -> Iterator[Callable[[int], None]]:
        """Yield a function that counts sent bytes of a file; those of a failed one do not count."""
        sent = 0

        def count(number: int) -> None:
            nonlocal sent
            number = min(number, size - sent)
            sent += number
            self.add(number)

        try:
            yield count
        except BaseException:
            self.add(-sent)
            raise
        count(size)

    def report(self, message: str) -> None:
        """Print the reason for waiting, and show it until more bytes are expected."""
        with self._lock:
            self._message = message
            field = self._field
        print(f"{field}: {message}", flush=True)

    @property
    def value(self) -> StagingProgress:
        """The progress."""
        with self._lock:
            remaining = max(0, self._total - self._done)
            rate = self._transferred / max(1e-3, time.monotonic() - self._started)
            return StagingProgress(
                bytes_done=self._done,
                bytes_total=max(self._total, self._done),
                seconds_left=min(remaining / rate, 10**7) if rate and remaining else 0.0,
                field=self._field,
                message=one_line(self._message, 256),
            )

    @contextmanager
    def written(self) -> Iterator[None]:
        """Print and write the progress periodically."""
        thread = threading.Thread(target=self._write_periodically, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._is_finished.set()
            thread.join()
            self._write()

    def _write_periodically(self) -> None:
        printed, text = time.monotonic(), ""
        while not self._is_finished.wait(INTERVAL_SECONDS):
            self._write()
            line = progress_text(self.value, self._verb)
            if line != text and time.monotonic() - printed >= PRINT_SECONDS:
                printed, text = time.monotonic(), line
                print(line, flush=True)

    def _write(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # a full disk must not stop the transfer
                write_json(self._file, self.value.model_dump_json(by_alias=True))
