"""Whether a process was killed because its pod ran out of memory.

When the kernel kills a rank, Ray's own processes survive, so the pod keeps running and does not
report OOMKilled. Only the kernel's counter in the pod's cgroup shows the kill.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import ray
from ray.exceptions import GetTimeoutError, OutOfMemoryError, RayActorError, RayError

from .pod_processes import run_in_pod

COUNTS = (Path("/sys/fs/cgroup/memory.events"), Path("/sys/fs/cgroup/memory/memory.oom_control"))
"""Kernel counters for cgroup v2 and v1, inside the container."""
ACTOR_LOST = (RayActorError, OutOfMemoryError)
"""Errors that Ray raises for a lost actor. OutOfMemoryError, which is not a RayActorError, means
that Ray's memory monitor killed the actor before the kernel did."""
RESPONSE_SECONDS = 10.0
"""Timeout for reading the counter of another pod."""


def oom_kills(files: Iterable[Path] = COUNTS) -> int:
    """Return how many of this pod's processes the kernel has OOM-killed; 0 without a counter."""
    for file in files:
        if file.is_file() and (match := re.search(r"^oom_kill (\d+)$", file.read_text(), re.M)):
            return int(match[1])
    return 0


def is_oom_killed(error: BaseException, kills: Mapping[str, int]) -> bool:
    """Return whether a lost process was killed for lack of memory; blocks while querying pods.

    `kills` contains an earlier result of `oom_kills` for the Ray node of each pod in which the
    process may have run.
    """
    if isinstance(error, OutOfMemoryError):
        return True
    now = {node: run_in_pod(node, oom_kills) for node in kills}
    for node, count in now.items():
        try:
            if ray.get(count, timeout=RESPONSE_SECONDS) > kills[node]:
                return True
        except (RayError, GetTimeoutError):
            continue  # the pod is lost, too; its status has the reason
    return False
