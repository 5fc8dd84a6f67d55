"""Stack dumps: on SIGUSR1 a process writes the stacks of all its threads to the log folder."""

import faulthandler
import logging
import signal
import sys
from pathlib import Path
from typing import TextIO

log = logging.getLogger(__name__)

_files: list[object] = []
"""The registered files, kept open because faulthandler stores only their descriptors."""


def register_stack_dumps(folder: Path, role: str) -> None:
    """On SIGUSR1, write stacks to `<folder>/stacks-<role>.txt`, or to stderr if that fails."""
    file: TextIO = sys.stderr
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / f"stacks-{role}.txt").open("a")
    except OSError as error:  # an unwritable log must not end the process
        log.warning(
            "cannot write the stacks of %s to a file (%s); writing them to stderr", role, error
        )
    _files.append(file)
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)
