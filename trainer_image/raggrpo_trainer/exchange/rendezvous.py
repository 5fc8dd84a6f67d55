"""Where the ranks of a process group exchange their addresses before they connect."""

import atexit
import fcntl
import os
import secrets
import shutil
import socket
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

FOLDER_PREFIX = "raggrpo-ranks-"
_NEW_PREFIX = "raggrpo-new-"
"""Prefix of a folder that is not locked yet."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """A file if all ranks run on one node, else an address on which rank 0 listens."""

    file: str = ""
    host: str = ""
    port: int = 0
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    """Secret by which ranks recognize each other."""


def file_rendezvous() -> Rendezvous:
    """Return a new file in a folder that other users cannot access.

    The folder is removed when this process exits: connections are made at any time until then.
    Folders of killed processes are removed by the next call.
    """
    root = Path(tempfile.gettempdir())
    for leftover in root.glob(f"{FOLDER_PREFIX}*"):
        _remove_unlocked(leftover)
    new = Path(tempfile.mkdtemp(prefix=_NEW_PREFIX))
    _lock(new)
    folder = new.rename(root / f"{FOLDER_PREFIX}{new.name.removeprefix(_NEW_PREFIX)}")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Rendezvous(file=f"{folder}/store")


def _lock(folder: Path) -> int:
    """Lock a folder until its descriptor is closed, at the latest when this process exits.

    Raises OSError if another process has locked it, or it is not a folder of this user.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _remove_unlocked(folder: Path) -> None:
    """Remove a folder whose process no longer exists."""
    with suppress(OSError):
        descriptor = _lock(folder)
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def address_rendezvous(host: str) -> Rendezvous:
    """Return an address of this host with a free port."""
    return Rendezvous(host=host, port=free_port())


def free_port() -> int:
    """Return a port of this host that is free at the moment."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
