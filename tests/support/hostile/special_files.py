"""Paths that are no regular files, or that lead out of their folder."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

SECRET = "content-of-another-folder"


def make_socket(path: Path) -> None:
    """Bind a socket by a short relative path, because long ones are not possible."""
    old = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(old)


def make_outside_link(path: Path) -> None:
    """Link to a file of another folder."""
    outside = path.parent.parent / f"outside-{path.parent.name}"
    outside.mkdir()
    (outside / path.name).write_text(
        f'{{"prompt": "{SECRET}", "answer": "a", "id": "1", "text": "{SECRET}"}}\n'
    )
    path.symlink_to(outside / path.name)


SPECIAL_FILES: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "socket": make_socket,
    "folder": Path.mkdir,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "terminal": lambda path: path.symlink_to("/dev/tty"),
    "link out of the folder": make_outside_link,
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to nothing": lambda path: path.symlink_to("missing"),
}
"""Functions that make a special file at a path."""
