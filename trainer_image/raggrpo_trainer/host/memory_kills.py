"""Whether a process ended because its pod's memory was used up.

Ray's own processes stay when the kernel ends a rank among them, so that the pod goes on and never
says OOMKilled: only the kernel's count in the pod's control group does.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import ray
from ray.exceptions import GetTimeoutError, OutOfMemoryError, RayActorError, RayError

from .pod_processes import run_in_pod

COUNTS = (Path("/sys/fs/cgroup/memory.events"), Path("/sys/fs/cgroup/memory/memory.oom_control"))
"""Of control groups version 2 and 1, as a container sees its own."""
ACTOR_LOST = (RayActorError, OutOfMemoryError)
"""What Ray raises for an actor that is gone: the second, which is no RayActorError, when Ray's own
monitor ended it for memory before the kernel had to."""
ANSWER_SECONDS = 10.0


def memory_kills(files: Iterable[Path] = COUNTS) -> int:
    """Return how many processes of this pod the kernel has ended for memory; 0: not counted."""
    for file in files:
        if file.is_file() and (found := re.search(r"^oom_kill (\d+)$", file.read_text(), re.M)):
            return int(found[1])
    return 0


def killed_for_memory(error: BaseException, kills: Mapping[str, int]) -> bool:
    """Return whether that is what a lost process died of; blocks while its pods are asked.

    `kills` holds `memory_kills` of every pod that it may be, by Ray node, as it was before.
    """
    if isinstance(error, OutOfMemoryError):
        return True
    now = {node: run_in_pod(node, memory_kills) for node in kills}
    for node, answer in now.items():
        try:
            if ray.get(answer, timeout=ANSWER_SECONDS) > kills[node]:
                return True
        except (RayError, GetTimeoutError):
            continue  # gone with its pod, which then says itself why
    return False
