"""An attempt's processes across pods: a PID is meaningful only within its own pod."""

import os
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


class PodProcess(NamedTuple):
    """A process, identified by its pod and PID."""

    node: str
    """The id of the Ray node, which is a pod."""
    pid: int


def node_id() -> str:
    """Return the id of the Ray node (pod) this process runs on."""
    return str(ray.get_runtime_context().get_node_id())


def this_process() -> PodProcess:
    """Return the calling process."""
    return PodProcess(node_id(), os.getpid())


def send(processes: Iterable[PodProcess], number: int) -> list[int]:
    """Send a signal to processes in any pod; return the PIDs of those not known to be gone.

    Does not wait for other pods: an unresponsive one may be the very thing that hangs.
    """
    here, sent = node_id(), []
    for node, pid in processes:
        if node == here:
            sent += [pid] if _send(pid, number) else []
        else:
            run_in_pod(node, _send, pid, number)
            sent.append(pid)
    return sent


def run_in_pod(node: str, function: Callable[..., Any], *arguments: object) -> Any:
    """Run a function in a pod; return a reference to its result, or an error if the pod is lost."""
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    task = ray.remote(function).options(num_cpus=0, scheduling_strategy=there)
    return task.remote(*arguments)


def _send(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
