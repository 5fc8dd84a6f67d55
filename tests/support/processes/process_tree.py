"""A run of its own for kill tests: starts children, says so, and waits to be killed.

`python process_tree.py LOGS [SECONDS]` prints one JSON line once everything is up.
"""

import json
import os
import sys
import time
from pathlib import Path

from raggrpo_operator.local_runtime.processes import Processes

FAMILY = "sleep 1000 & setsid sleep 1000 & env -i setsid sleep 1000 & echo $!; wait"
"""A child, a grandchild in a session of its own, and one that lost its environment."""


def main() -> None:
    """Start, announce, guard until killed."""
    logs = Path(sys.argv[1])
    processes = Processes()
    child = processes.start("family", ["sh", "-c", FAMILY], os.environ, logs / "family.log")
    while not child.log_tail():
        time.sleep(0.02)
    announce(processes, keeper=child.process.pid, nameless=int(child.log_tail()))
    if sys.argv[2:] == ["raise"]:
        raise RuntimeError("on purpose")
    guard_until_killed(processes)


def announce(processes: Processes, **more: object) -> None:
    """Print one JSON line for the test."""
    assert processes._warden is not None
    found = {"mark": processes.mark, "warden": processes._warden.pid, **more}
    print(json.dumps(found), flush=True)


def guard_until_killed(processes: Processes) -> None:
    test = os.getppid()
    while os.getppid() == test:  # an orphan of a killed test must not stay
        processes.ensure_warden()
        time.sleep(0.1)


if __name__ == "__main__":
    main()
