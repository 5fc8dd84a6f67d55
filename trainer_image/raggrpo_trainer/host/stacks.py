"""Stack dumps: on SIGUSR1 a process writes all its threads' stacks to the log folder."""

import faulthandler
import signal
from pathlib import Path

_files: list[object] = []
"""Keeps the registered files open: faulthandler stores only their descriptors."""


def register(folder: Path, role: str) -> None:
    """Write stacks to `<folder>/stacks-<role>.txt` whenever SIGUSR1 arrives."""
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / f"stacks-{role}.txt").open("a")
    _files.append(file)
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)
