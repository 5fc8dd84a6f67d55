"""Process for kill tests: starts children, reports them, and waits to be killed.

`python process_tree.py LOGS [SECONDS]` prints one JSON line once all children run.
"""

import json
import os
import sys
import time
from pathlib import Path

from raggrpo_operator.local_runtime.processes import Processes

FAMILY = "sleep 1000 & setsid sleep 1000 & env -i setsid sleep 1000 & echo $!; wait"
"""Shell command that starts a child, one in its own session, and one without environment."""


def main() -> None:
    """Start and report the children; guard them until killed."""
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
    line = {"mark": processes.mark, "warden": processes._warden.pid, **more}
    print(json.dumps(line), flush=True)


def guard_until_killed(processes: Processes) -> None:
    test = os.getppid()
    while os.getppid() == test:  # exit if the test was killed
        processes.ensure_warden()
        time.sleep(0.1)


if __name__ == "__main__":
    main()
