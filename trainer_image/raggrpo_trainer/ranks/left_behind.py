"""A mark in its pod for each rank that an ended driver left to the next one.

Without it living ranks mean to the pod's preStop hook that their driver lives. Must stay light.
"""

import tempfile
from pathlib import Path


def mark(pid: int) -> Path:
    """Return the file that is there while the rank with this PID waits for a driver."""
    return Path(tempfile.gettempdir()) / f"raggrpo-left-rank-{pid}"
