"""The progress server as a detached Ray actor on the head: it outlives a driver that died.

So the last progress of an attempt can still be read after its exit, and a blocked driver is seen.
"""

import logging
import os
import signal
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from .driver_process import DriverProcess
from .progress_server import ProgressServer
from .rollout import node_id

log = logging.getLogger(__name__)

NAME = "progress"


class _Server:
    """Runs inside the actor's process."""

    def __init__(self, port: int, token: str) -> None:
        self._pids: list[int] = []
        self._driver = DriverProcess()
        self._server = ProgressServer(
            port, token=token, dump_stacks=self._dump_stacks, stop_driver=self._driver.stop
        )

    def update(self, progress: bytes, metrics: bytes) -> None:
        """Take over what GET /progress and GET /metrics answer."""
        self._server.update(progress, metrics)

    def watch(self, pids: list[int]) -> None:
        """Remember the processes of this pod whose stacks may be asked for, the driver first."""
        self._pids = pids
        self._driver.pid = pids[0]

    def _dump_stacks(self) -> list[int]:
        """Ask every known process of this pod for its stacks; returns who was asked."""
        asked = []
        for pid in self._pids:
            try:
                os.kill(pid, signal.SIGUSR1)
            except ProcessLookupError:
                continue
            asked.append(pid)
        return asked


class ProgressActor:
    """The driver's handle."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._last: Any = None

    def publish(self, progress: bytes, metrics: bytes) -> None:
        """Send without waiting."""
        self._last = self._actor.update.remote(progress, metrics)

    async def watch(self, pids: list[int]) -> None:
        """Name the processes of this pod whose stacks are dumped on demand."""
        await self._actor.watch.remote(pids)

    async def flush(self) -> None:
        """Wait until the last update has arrived."""
        if self._last is not None:
            await self._last


async def obtain_progress_actor(port: int, token: str) -> ProgressActor:
    """Return the cluster's progress server, started if there is none."""
    actor = (
        ray.remote(_Server)
        .options(
            name=NAME,
            get_if_exists=True,
            lifetime="detached",
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id(), soft=False),
        )
        .remote(port, token)
    )
    return ProgressActor(actor)
