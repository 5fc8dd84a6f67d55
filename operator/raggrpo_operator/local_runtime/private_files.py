"""Files and folders of a local run that no other user of the machine may read or replace."""

import os
import stat
from pathlib import Path

from raggrpo_operator.errors import PermanentError

FILE, FOLDER = 0o600, 0o700


def private_folder(path: Path) -> None:
    """Create a folder for the user alone; one that exists keeps its mode. Raises OSError."""
    path.mkdir(FOLDER, parents=True, exist_ok=True)


def private_opener(path: str, flags: int) -> int:
    """Open a file as `open` asks for, as the user's alone; a link is not followed.

    An earlier release may have left it readable by others. Raises OSError.
    """
    opened = os.open(path, flags | os.O_NOFOLLOW, FILE)
    os.fchmod(opened, FILE)
    return opened


def require_own(path: Path) -> None:
    """Refuse a folder in which others could replace files. Raises PermanentError, OSError."""
    found = path.stat()
    remedy = "choose another one with --dir"
    if found.st_uid != os.geteuid():
        raise PermanentError(f"the job folder {path} belongs to another user: {remedy}")
    if found.st_mode & stat.S_ISVTX:  # there nobody replaces somebody else's file
        return
    if found.st_mode & stat.S_IWOTH:
        raise PermanentError(
            f"everybody may write to the job folder {path}: chmod o-w {path}, or {remedy}"
        )
    if found.st_mode & stat.S_IWGRP and found.st_gid != os.getegid():
        raise PermanentError(
            f"a group may write to the job folder {path}: chmod g-w {path}, or {remedy}"
        )
