"""Limits on the files that are examined at a backup URL, and on the time to examine them."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

from raggrpo_api.limits import MAX_LISTING_SECONDS
from raggrpo_api.secrets.redaction import display_url
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_buckets.answers import valid_answers
from raggrpo_trainer.errors import TrainerError

MAX_EXAMINED_FILES = 20_000
"""Files of backups whose sizes are compared."""
MAX_EXAMINATION_SECONDS = 600.0
"""Time for all requests of an examination except listings, with their retries."""

T = TypeVar("T")


class Examination:
    """Reads markers and the metadata of files at a backup URL, within limits.

    Fetching a backup is no examination: it may take as long as its store makes progress.

    Methods raise TrainerError CHECKPOINT_WRITE_FAILED if a limit is exceeded, UnsuitableBody if a
    response is invalid, else the errors of the file system.
    """

    def __init__(
        self, url: str, file_system: Any, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.file_system = file_system
        self._url, self._clock = display_url(url), clock
        self._files = self._examined = 0
        self._seconds = 0.0

    def add_files(self, count: int) -> None:
        """Add the files of a backup that will be examined."""
        self._files += count
        if self._files > MAX_EXAMINED_FILES:
            raise TrainerError(
                ExitCode.CHECKPOINT_WRITE_FAILED,
                f"the damaged backups at checkpoint.backup.url {self._url} list more than "
                f"{MAX_EXAMINED_FILES:,} files; remove them, or set another URL to start over",
            )

    def paths(self, path: str) -> list[str]:
        """Return the paths in a folder at a remote URL; they are not examined."""
        with valid_answers(self.file_system, path):
            paths = self.file_system.ls(path, detail=False, timeout=MAX_LISTING_SECONDS)
            return [str(each) for each in paths]

    def exists(self, path: str) -> bool:
        """Return whether a file or folder exists."""
        return bool(self._limited(self.file_system.exists, path))

    def info(self, path: str) -> Any:
        """Return the metadata of a file, as fsspec describes it."""
        info = self._limited(self.file_system.info, path)
        self._examined += 1
        return info

    def read(self, path: str, size: int) -> bytes:
        """Return the first `size` bytes of a file, or more if the store ignores the range."""
        content: bytes = self._limited(self.file_system.cat_file, path, start=0, end=size)
        return content

    def _limited(self, method: Callable[..., T], path: str, **options: Any) -> T:
        if self.file_system.async_impl:  # also interrupts retries
            options["timeout"] = max(0.001, MAX_EXAMINATION_SECONDS - self._seconds)
        started = self._clock()
        try:
            with valid_answers(self.file_system, path):
                result = method(path, **options)
        except Exception:
            self._add_time(self._clock() - started)
            raise
        self._add_time(self._clock() - started)
        return result

    def _add_time(self, seconds: float) -> None:
        self._seconds += seconds
        if self._seconds >= MAX_EXAMINATION_SECONDS:
            raise TrainerError(
                ExitCode.CHECKPOINT_WRITE_FAILED,
                f"examining the backups at checkpoint.backup.url {self._url} took more than "
                f"{MAX_EXAMINATION_SECONDS:g} s ({self._examined:,} files examined): the store "
                "responds slowly; try again later, or remove backups that are not needed",
            )
