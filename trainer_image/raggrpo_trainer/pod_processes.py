"""Processes of an attempt in its pods: a process number means something in its own pod only."""

import os
from collections.abc import Iterable
from typing import NamedTuple

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
            there = NodeAffinitySchedulingStrategy(node, soft=False)
            task = ray.remote(_send).options(num_cpus=0, scheduling_strategy=there)
            task.remote(pid, number)
            sent.append(pid)
    return sent


def _send(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
