"""A file that is downloaded in parts, with a journal of the parts that are on disk.

The journal has one byte per part, set once the part is on disk, so that a download resumes after a
kill or the loss of its host.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from raggrpo_api.foreign_files import read_limited
from raggrpo_api.limits import MAX_INDEX_BYTES

from .failures import translate_disk_errors

PART_BYTES = 32 * 2**20
"""Bytes per request. A kill loses at most one part per thread."""
MAX_SPACE_SHARE = 0.9
"""Share of the free space that a file of unknown size may have; other jobs may use the volume."""
_DONE = b"1"


@dataclass(slots=True)
class Part:
    """A range of a file; `start` advances with the bytes that are written."""

    number: int
    start: int
    stop: int | None
    """End (exclusive), or None if the size is unknown."""


@dataclass(frozen=True, slots=True)
class Draft:
    """An incomplete file."""

    path: Path
    size: int | None
    """Size of the complete file, or None if it is unknown."""

    @property
    def journal(self) -> Path:
        """File of the journal."""
        return self.path.with_suffix(".parts")

    def missing(self) -> Iterator[Part]:
        """Yield the parts that are not on disk."""
        if self.size is None:
            yield Part(0, 0, None)
            return
        marks = self._marks()
        for number, start in enumerate(range(0, self.size, PART_BYTES)):
            if marks[number : number + 1] != _DONE:
                yield Part(number, start, min(start + PART_BYTES, self.size))

    def bytes_on_disk(self) -> int:
        """Return the bytes of the parts that are on disk."""
        size = self.size or 0
        done = (number for number, mark in enumerate(self._marks()) if mark == _DONE[0])
        return sum(max(0, min(PART_BYTES, size - number * PART_BYTES)) for number in done)

    def _marks(self) -> bytes:
        if self.journal.exists() and self.path.exists():
            return read_limited(self.journal, MAX_INDEX_BYTES)
        return b""

    @contextmanager
    def opened(self) -> Iterator["OpenDraft"]:
        """Open the file and its journal; keep parts that are on disk."""
        with translate_disk_errors(self.path.parent):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            descriptors = [os.open(self.path, flags, 0o664), os.open(self.journal, flags, 0o664)]
        try:
            yield OpenDraft(self.path.parent, *descriptors)
        finally:
            for each in descriptors:
                os.close(each)

    def discard(self) -> None:
        """Remove the file and its journal."""
        self.journal.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)

    def complete(self, target: Path) -> None:
        """Move the file to its place."""
        target.parent.mkdir(parents=True, exist_ok=True)
        self.path.replace(target)
        self.journal.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class OpenDraft:
    """An open draft; several threads may write different parts."""

    folder: Path
    descriptor: int
    journal: int

    def space(self) -> int:
        """Return the bytes that a file of unknown size may have."""
        with translate_disk_errors(self.folder):
            own = os.fstat(self.descriptor).st_blocks * 512
            return int(MAX_SPACE_SHARE * (shutil.disk_usage(self.folder).free + own))

    def write(self, chunk: bytes, offset: int) -> None:
        """Write bytes. Raises StagingFailed if the disk is full."""
        with translate_disk_errors(self.folder):
            view = memoryview(chunk)
            while view:
                written = os.pwrite(self.descriptor, view, offset)
                view, offset = view[written:], offset + written

    def mark(self, part: Part) -> None:
        """Record that a part is on disk."""
        with translate_disk_errors(self.folder):
            os.fdatasync(self.descriptor)
            os.pwrite(self.journal, _DONE, part.number)
