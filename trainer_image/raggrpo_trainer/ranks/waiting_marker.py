"""A marker file for each rank that an exited driver left to the next driver, in the rank's pod.

The preStop hook infers a live driver from live ranks without this marker. Must import only the
standard library: the hook has to start fast.
"""

import tempfile
from pathlib import Path


def waiting_marker(pid: int) -> Path:
    """Return the path of the file that exists while the rank with this PID waits for a driver."""
    return Path(tempfile.gettempdir()) / f"raggrpo-left-rank-{pid}"
