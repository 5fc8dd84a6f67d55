"""Where the ranks of a process group exchange their addresses before they connect."""

import atexit
import secrets
import shutil
import socket
import tempfile
from dataclasses import dataclass, field

FOLDER_PREFIX = "raggrpo-ranks-"


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
    """
    folder = tempfile.mkdtemp(prefix=FOLDER_PREFIX)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Rendezvous(file=f"{folder}/store")


def address_rendezvous(host: str) -> Rendezvous:
    """Return an address of this host with a free port."""
    return Rendezvous(host=host, port=free_port())


def free_port() -> int:
    """Return a port of this host that is free at the moment."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
