"""Files and folders that other users of the machine cannot read or replace."""

import os
import stat
from pathlib import Path

from raggrpo_operator.errors import PermanentError

FILE, FOLDER = 0o600, 0o700


def private_folder(path: Path) -> None:
    """Create a folder with mode 0700; an existing folder keeps its mode. Raises OSError."""
    path.mkdir(FOLDER, parents=True, exist_ok=True)


def private_opener(path: str, flags: int) -> int:
    """Open a file and set its mode to 0600; used as the `opener` of `open`. Raises OSError.

    Symbolic links are not followed.
    """
    descriptor = os.open(path, flags | os.O_NOFOLLOW, FILE)
    os.fchmod(descriptor, FILE)
    return descriptor


def require_own(path: Path) -> None:
    """Raise PermanentError if other users can replace files in a folder. Also raises OSError."""
    info = path.stat()
    remedy = "specify another one with --dir"
    if info.st_uid != os.geteuid():
        raise PermanentError(f"the job folder {path} belongs to another user: {remedy}")
    if info.st_mode & stat.S_ISVTX:  # with the sticky bit, only the owner of a file can replace it
        return
    if info.st_mode & stat.S_IWOTH:
        raise PermanentError(
            f"the job folder {path} is writable by all users: chmod o-w {path}, or {remedy}"
        )
    if info.st_mode & stat.S_IWGRP and info.st_gid != os.getegid():
        raise PermanentError(
            f"the job folder {path} is writable by another group: chmod g-w {path}, or {remedy}"
        )
