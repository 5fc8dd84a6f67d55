"""Whether a process died because its pod ran out of memory.

When the kernel kills a rank, Ray's own processes survive, so the pod keeps running and never
reports OOMKilled. Only the kernel's count in the pod's cgroup shows the kill.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import ray
from ray.exceptions import GetTimeoutError, OutOfMemoryError, RayActorError, RayError

from .pod_processes import run_in_pod

COUNTS = (Path("/sys/fs/cgroup/memory.events"), Path("/sys/fs/cgroup/memory/memory.oom_control"))
"""For cgroup v2 and v1, as seen from inside the container."""
ACTOR_LOST = (RayActorError, OutOfMemoryError)
"""What Ray raises for a lost actor. OutOfMemoryError, which is not a RayActorError, means that
Ray's own memory monitor killed it before the kernel had to."""
ANSWER_SECONDS = 10.0


def oom_kills(files: Iterable[Path] = COUNTS) -> int:
    """Return how many of this pod's processes the kernel has OOM-killed; 0 if it keeps no count."""
    for file in files:
        if file.is_file() and (found := re.search(r"^oom_kill (\d+)$", file.read_text(), re.M)):
            return int(found[1])
    return 0


def is_oom_killed(error: BaseException, kills: Mapping[str, int]) -> bool:
    """Return whether a lost process died from lack of memory; blocks while asking its pods.

    `kills` maps the Ray node of every pod it may have run in to the earlier `oom_kills` there.
    """
    if isinstance(error, OutOfMemoryError):
        return True
    now = {node: run_in_pod(node, oom_kills) for node in kills}
    for node, answer in now.items():
        try:
            if ray.get(answer, timeout=ANSWER_SECONDS) > kills[node]:
                return True
        except (RayError, GetTimeoutError):
            continue  # the pod is gone too; its own status says why
    return False
