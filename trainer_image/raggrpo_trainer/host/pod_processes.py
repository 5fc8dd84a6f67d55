"""Processes of an attempt in its pods: a process number means something in its own pod only."""

import os
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


class PodProcess(NamedTuple):
    """One process."""

    node: str
    """Ray's node, which is a pod."""
    pid: int


def node_id() -> str:
    """Return the Ray node (pod) this process runs on."""
    return str(ray.get_runtime_context().get_node_id())


def this_process() -> PodProcess:
    """Return the caller's own."""
    return PodProcess(node_id(), os.getpid())


def send(processes: Iterable[PodProcess], number: int) -> list[int]:
    """Send a signal to processes wherever they are; returns those not known to be gone.

    Other pods are not waited for: one that does not answer may be what hangs.
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
    """Return a Ray reference to what a function returns in that pod, an error if it is lost."""
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    task = ray.remote(function).options(num_cpus=0, scheduling_strategy=there)
    return task.remote(*arguments)


def _send(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
