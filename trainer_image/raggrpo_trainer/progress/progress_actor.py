"""The progress server as a detached Ray actor on the head, so that it outlives the driver.

An attempt's last progress stays readable after its exit, or while the driver is blocked.
"""

import asyncio
import logging
import signal
import time
from typing import Any

import ray
from ray.exceptions import RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raggrpo_api.trainer.progress import Progress
from raggrpo_trainer.host.pod_processes import PodProcess, node_id, send

from .driver_process import DriverProcess
from .progress_server import LOOPBACK, ProgressServer

log = logging.getLogger(__name__)

NAME = "progress"
LOST_SECONDS = 30.0
"""How long Ray may take to notice that a head is gone."""


class _Server:
    """Runs inside the actor's process."""

    def __init__(self, port: int, token: str) -> None:
        self._watched: list[PodProcess] = []
        self._driver = DriverProcess()
        self._server = ProgressServer(
            port,
            host=listen_host(token),
            token=token,
            dump_stacks=self._dump_stacks,
            stop_driver=self._driver.stop,
        )

    def update(self, progress: bytes, metrics: bytes) -> None:
        """Set what GET /progress and GET /metrics return."""
        self._server.update(progress, metrics)

    def progress(self) -> bytes:
        """Return what GET /progress returns."""
        return self._server.progress

    def watch(self, processes: list[PodProcess]) -> None:
        """Set the processes whose stacks can be dumped; the first must be this pod's driver."""
        self._watched = processes
        self._driver.pid = processes[0].pid

    def _dump_stacks(self) -> list[int]:
        """Ask every watched process for its stacks; return the PIDs asked."""
        return send(self._watched, signal.SIGUSR1)


def listen_host(token: str) -> str:
    """Return where to listen: everywhere in a guarded pod, else as in a local run."""
    is_local = ray.util.get_node_ip_address() == LOOPBACK
    return "0.0.0.0" if token and not is_local else LOOPBACK


class ProgressActor:
    """The driver's handle to the progress server."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._last: Any = None

    def publish(self, progress: bytes, metrics: bytes) -> None:
        """Send an update without waiting for it to arrive."""
        self._last = self._actor.update.remote(progress, metrics)

    async def progress(self) -> Progress | None:
        """Return the last progress of this attempt, or of the one before; None if there is none."""
        found: bytes = await self._actor.progress.remote()
        return Progress.model_validate_json(found) if found else None

    async def watch(self, processes: list[PodProcess]) -> None:
        """Set the processes whose stacks are dumped on demand; all must have registered already."""
        await self._actor.watch.remote(processes)

    async def flush(self) -> None:
        """Wait until the last update has arrived."""
        if self._last is not None:
            await self._last


async def start_progress_actor(port: int, token: str) -> tuple[ProgressActor, Progress | None]:
    """Return the cluster's progress server, started if there is none, and its last progress.

    That of a lost head keeps its name until its successor has learned of the loss.
    """
    server = ray.remote(_Server).options(
        name=NAME,
        get_if_exists=True,
        lifetime="detached",
        num_cpus=0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node_id(), soft=False),
    )
    deadline = time.monotonic() + LOST_SECONDS
    while True:
        found = ProgressActor(server.remote(port, token))
        try:
            return found, await found.progress()
        except RayActorError as error:
            if time.monotonic() > deadline:
                raise
            log.info("the progress server of a lost head is still known: %s", error)
            await asyncio.sleep(0.5)
