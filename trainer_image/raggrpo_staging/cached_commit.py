"""A commit of a repository in the hub's cache.

HF_HUB_CACHE/models--org--name/blobs/CHECKSUM      files, or links to the store of all repositories
HF_HUB_CACHE/models--org--name/snapshots/COMMIT/…  links to them; the files on a disk without links
HF_HUB_CACHE/models--org--name/refs/BRANCH         commit of a branch
"""

import errno
import os
import shutil
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from raggrpo_api.foreign_files import read_limited

from .failures import own_path
from .folder import WORK, write_json
from .remote import RemoteFile

NOT_WRITABLE = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_NO_LINKS = frozenset({errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP})
_MAX_REFERENCE = 256


@dataclass(frozen=True, slots=True)
class CachedCommit:
    """A commit in the folder of its repository. Methods raise OSError."""

    repository: Path
    commit: str

    @property
    def folder(self) -> Path:
        """Folder of the files."""
        return own_path(self.repository, f"snapshots/{self.commit}")

    @property
    def blobs(self) -> Path:
        """Folder of the contents."""
        return self.repository / "blobs"

    @property
    def work(self) -> Path:
        """Folder of downloads in progress."""
        return self.repository / WORK

    def has(self, file: RemoteFile) -> bool:
        """Return whether a file is complete."""
        path, blob = self._path(file), self._blob(file)
        is_own = not path.is_symlink() or path.resolve() == blob.resolve()
        return is_own and _is_complete(path, file)

    def has_blob(self, file: RemoteFile) -> bool:
        """Return whether the content of a file is complete; remove it if it is damaged."""
        if _is_complete(self._blob(file), file):
            return True
        self._blob(file).unlink(missing_ok=True)
        return False

    def link(self, files: Sequence[RemoteFile]) -> None:
        """Link files to their contents; without links, as huggingface_hub, move the contents."""
        self.work.mkdir(exist_ok=True)
        for number, file in enumerate(files):
            path, blob, draft = self._path(file), self._blob(file), self.work / "link"
            path.parent.mkdir(parents=True, exist_ok=True)
            draft.unlink(missing_ok=True)
            try:
                draft.symlink_to(os.path.relpath(blob, path.parent))
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                if blob in map(self._blob, files[number + 1 :]):
                    shutil.copyfile(blob, draft)
                else:
                    blob.replace(draft)
            draft.replace(path)

    def record(self, revision: str) -> None:
        """Store that a branch names the commit, with which the cache then also works offline."""
        if revision == self.commit:
            return
        reference = own_path(self.repository, f"refs/{revision}")
        if reference.exists() and read_limited(reference, _MAX_REFERENCE) == self.commit.encode():
            return
        reference.parent.mkdir(parents=True, exist_ok=True)
        write_json(reference, self.commit)

    def _path(self, file: RemoteFile) -> Path:
        folder, _, name = file.location.rpartition("/")
        return (own_path(self.folder, folder) if folder else self.folder) / name

    def _blob(self, file: RemoteFile) -> Path:
        return self.blobs / blob_name(file)


def blob_name(file: RemoteFile) -> str:
    """Return the name of a file's content in the cache: its checksum on the hub."""
    assert file.checksum is not None
    return file.checksum.digest


def _is_complete(path: Path, file: RemoteFile) -> bool:
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size == file.size
