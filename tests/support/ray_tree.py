"""A run of its own with a real Ray head, a driver and detached actors, for kill tests.

`python ray_tree.py LOGS` prints one JSON line once everything is up and then waits.
"""

import asyncio
import os
import shlex
import signal
import sys
from pathlib import Path

import psutil

from raggrpo_api.trainer_config import World
from raggrpo_operator.errors import OperatorError
from raggrpo_operator.local_runtime import warden
from raggrpo_operator.local_runtime.processes import Processes, tail
from raggrpo_operator.local_runtime.ray_head import (
    RayHead,
    driver_log,
    make_temp_dir,
    start_ray_head,
)
from support.process_tree import announce, guard_until_killed

SUBMISSION = "probe-a1"
DRIVER = """
import os, ray, time
ray.init(address="auto", namespace="probe", log_to_driver=False)

@ray.remote(num_cpus=1)
class Part:
    def pid(self):
        return os.getpid()

parts = [Part.options(name=f"part-{i}", lifetime="detached").remote() for i in range(2)]
print("parts", *ray.get([part.pid.remote() for part in parts]), flush=True)
time.sleep(1000)
"""


def start_head(processes: Processes, logs: Path, **more_env: str) -> RayHead:
    """Start a small head."""
    return start_ray_head(
        1,
        processes,
        world=World(),
        object_store_bytes=80 * 1024**2,
        env=os.environ | more_env,
        log_file=logs / "ray.log",
        temp_dir=make_temp_dir(),
    )


async def submit(head: RayHead, program: str, env: dict[str, str]) -> None:
    """Submit a Python program as soon as the head takes jobs."""
    entrypoint = f"exec {shlex.quote(sys.executable)} -c {shlex.quote(program)}"
    while True:
        assert not head.death(), head.death()
        try:
            return await head.jobs.submit(SUBMISSION, entrypoint, env, {})
        except OperatorError:
            await asyncio.sleep(0.3)  # no answer yet


def kill_gcs(mark: str) -> None:
    """Kill the one GCS among the processes with this mark."""
    [gcs] = [pid for pid in warden.carriers(mark) if psutil.Process(pid).name() == "gcs_server"]
    os.kill(gcs, signal.SIGKILL)


async def start_tree(processes: Processes, logs: Path) -> RayHead:
    """Start a head and a driver with two detached actors; return when they run."""
    head = start_head(processes, logs)
    await submit(head, DRIVER, {})
    while "parts" not in tail(driver_log(head.temp_dir, SUBMISSION), lines=100):
        assert not head.death(), head.death()
        await asyncio.sleep(0.1)
    return head


def main() -> None:
    """Start, announce, guard until killed."""
    processes = Processes()
    head = asyncio.run(start_tree(processes, Path(sys.argv[1])))
    announce(processes, keeper=head.child.process.pid, temp_dir=str(head.temp_dir))
    guard_until_killed(processes)


if __name__ == "__main__":
    main()
