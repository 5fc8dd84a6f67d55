"""Stack dumps: on SIGUSR1 a process writes all its threads' stacks to the log folder."""

import faulthandler
import logging
import signal
import sys
from pathlib import Path
from typing import TextIO

log = logging.getLogger(__name__)

_files: list[object] = []
"""Keeps the registered files open: faulthandler stores only their descriptors."""


def register_stack_dumps(folder: Path, role: str) -> None:
    """Write stacks to `<folder>/stacks-<role>.txt` whenever SIGUSR1 arrives, or else to stderr."""
    file: TextIO = sys.stderr
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / f"stacks-{role}.txt").open("a")
    except OSError as error:  # a log that cannot be written ends nothing
        log.warning("stacks of %s go to its own output: %s", role, error)
    _files.append(file)
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)
