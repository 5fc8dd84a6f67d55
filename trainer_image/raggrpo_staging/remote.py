"""`Remote`: files of one source on a server."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass

from raggrpo_api.fields.text import ShortText
from raggrpo_api.trainer.staging import Bytes

_STRICT = ConfigDict(strict=True)
"""Raises ValueError for a value of another type, which a server may send."""
_SHORT_TEXT = TypeAdapter(ShortText)


@dataclass(frozen=True, slots=True, config=_STRICT)
class Checksum:
    """Checksum of a file that the server reports or the user specifies."""

    algorithm: Annotated[str, Field(pattern="^(sha256|sha512|md5|git)$")]
    """`git`: SHA-1 of a git blob."""
    digest: Annotated[str, Field(pattern="^[0-9a-f]{32,128}$")]
    """In hexadecimal."""


@dataclass(frozen=True, slots=True, config=_STRICT)
class RemoteFile:
    """A file of a source."""

    path: str
    """Path relative to the staged folder."""
    location: str
    """Path on the server."""
    size: Bytes | None
    """None: unknown, or the server does not support ranges."""
    checksum: Checksum | None = None


def _recordable(revision: str) -> str:
    """Return a revision, or its digest if it would change as part of a status."""
    is_unchanged = _SHORT_TEXT.validate_python(revision) == revision
    return revision if is_unchanged else hashlib.sha256(revision.encode()).hexdigest()


@dataclass(frozen=True, slots=True, config=_STRICT)
class Snapshot:
    """All files of a source at one revision."""

    revision: Annotated[str, AfterValidator(_recordable)]
    """Text of at most 256 characters, as in the status of a job."""
    files: tuple[RemoteFile, ...]
    is_file: bool = False
    """Whether the source is one file instead of a folder."""
    is_immutable: bool = True
    """Whether the server always returns the same content for the revision."""
    is_packed: bool = False
    """Whether the files are archives, from which `Remote.unpack` extracts the staged files."""

    @property
    def known_bytes(self) -> int:
        """Total size of the files whose size is known."""
        return sum(each.size or 0 for each in self.files)


class Remote(ABC):
    """Files of one source. Methods raise StagingFailed."""

    @abstractmethod
    def snapshot(self, revision: str, /) -> Snapshot:
        """Return the files at a pinned revision, or at the source's own if it is empty."""

    @abstractmethod
    def chunks(self, file: RemoteFile, start: int, stop: int | None, /) -> Iterator[bytes]:
        """Yield the bytes of a file from `start` to `stop` (exclusive; None: the end).

        Raises RangeIgnored if the server does not support ranges. Called in several threads.
        """

    def unpack(self, archives: Path, folder: Path) -> Mapping[str, str]:
        """Extract downloaded archives; return the SHA-256 of each file by relative path."""
        raise NotImplementedError
