"""Processes of an attempt across pods: a PID is unique only within its pod."""

import os
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


class PodProcess(NamedTuple):
    """A process, identified by its pod and PID."""

    node: str
    """ID of the pod's Ray node."""
    pid: int


def node_id() -> str:
    """Return the ID of the Ray node (pod) of this process."""
    return str(ray.get_runtime_context().get_node_id())


def this_process() -> PodProcess:
    """Return the calling process."""
    return PodProcess(node_id(), os.getpid())


def send_signal(processes: Iterable[PodProcess], number: int) -> list[int]:
    """Send a signal to processes in any pod; return the PIDs of those that may still exist.

    Does not wait for other pods, because a pod may be unresponsive.
    """
    here = node_id()
    sent: list[int] = []
    for node, pid in processes:
        if node == here:
            sent += [pid] if _send(pid, number) else []
        else:
            run_in_pod(node, _send, pid, number)
            sent.append(pid)
    return sent


def run_in_pod(node: str, function: Callable[..., Any], *arguments: object) -> Any:
    """Run a function in a pod; return a reference to its result (an error if the pod is lost)."""
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    task = ray.remote(function).options(num_cpus=0, scheduling_strategy=there)
    return task.remote(*arguments)


def _send(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
