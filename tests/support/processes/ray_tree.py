"""Process for kill tests with a real Ray head, a driver and detached actors.

`python ray_tree.py LOGS` prints one JSON line once everything runs, then waits.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

import psutil

from raggrpo_api.trainer.config import World
from raggrpo_operator.local_runtime import warden
from raggrpo_operator.local_runtime.driver import Driver, driver_log
from raggrpo_operator.local_runtime.processes import Processes, tail
from raggrpo_operator.local_runtime.ray_head import RayHead, make_temp_dir, start_ray_head
from support.processes.process_tree import announce, guard_until_killed

DRIVER = """
import os, ray, subprocess, time
ray.init(address="auto", namespace="probe", log_to_driver=False)

@ray.remote(num_cpus=1)
class Part:
    def __init__(self):
        subprocess.Popen(["sh", "-c", "trap '' TERM; while :; do sleep 1; done", "child-of-part"])

    def pid(self):
        return os.getpid()

parts = [Part.options(name=f"part-{i}", lifetime="detached").remote() for i in range(2)]
print("parts", *ray.get([part.pid.remote() for part in parts]), flush=True)
time.sleep(1000)
"""


def start_head(processes: Processes, logs: Path) -> RayHead:
    """Start a small head."""
    return start_ray_head(
        1,
        processes,
        world=World(),
        object_store_bytes=80 * 1024**2,
        env=os.environ,
        log_file=logs / "ray.log",
        temp_dir=make_temp_dir(),
    )


def kill_gcs(mark: str) -> None:
    """Kill the GCS, the only one among the processes with this mark."""
    [gcs] = [
        pid for pid in warden.marked_processes(mark) if psutil.Process(pid).name() == "gcs_server"
    ]
    os.kill(gcs, signal.SIGKILL)


async def start_tree(processes: Processes, logs: Path) -> RayHead:
    """Start a head and a driver with two detached actors and their children; return when ready."""
    head = start_head(processes, logs)
    while not head.address():
        assert not head.exit_message(), head.exit_message()
        await asyncio.sleep(0.1)
    Driver(processes, head, 1, {}, (sys.executable, "-c", DRIVER))
    while "parts" not in tail(driver_log(head.temp_dir, 1), lines=100):
        assert not head.exit_message(), head.exit_message()
        await asyncio.sleep(0.1)
    return head


def main() -> None:
    """Start and report the tree; guard it until killed."""
    processes = Processes()
    head = asyncio.run(start_tree(processes, Path(sys.argv[1])))
    announce(processes, keeper=head.child.process.pid, temp_dir=str(head.temp_dir))
    guard_until_killed(processes)


if __name__ == "__main__":
    main()
