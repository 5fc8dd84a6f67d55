"""The progress server as a detached Ray actor on the head, which outlives the driver.

The last progress stays readable while the driver is blocked and after the driver has exited.
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
from raggrpo_trainer.host.pod_processes import PodProcess, node_id, send_signal

from .driver_process import DriverProcess
from .progress_server import LOOPBACK, ProgressServer

log = logging.getLogger(__name__)

NAME = "progress"
HEAD_LOSS_SECONDS = 30.0
"""How long Ray may take to detect the loss of a head."""


class _Server:
    """The class of the detached actor, which runs the progress server."""

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
        """Set the content of GET /progress and GET /metrics."""
        self._server.update(progress, metrics)

    def progress(self) -> bytes:
        """Return the content of GET /progress."""
        return self._server.progress

    def watch(self, processes: list[PodProcess]) -> None:
        """Set the processes whose stacks can be dumped; the first is the driver in this pod."""
        self._watched = processes
        self._driver.pid = processes[0].pid

    def _dump_stacks(self) -> list[int]:
        """Signal all watched processes to dump their stacks; return the signaled PIDs."""
        return send_signal(self._watched, signal.SIGUSR1)


def listen_host(token: str) -> str | None:
    """Return the address to listen on: loopback, or None for all if a token is required."""
    is_local = ray.util.get_node_ip_address() == LOOPBACK
    return None if token and not is_local else LOOPBACK


class ProgressActor:
    """The driver's handle to the progress server."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._last_update: Any = None

    def publish(self, progress: bytes, metrics: bytes) -> None:
        """Send an update without waiting for its delivery."""
        self._last_update = self._actor.update.remote(progress, metrics)

    async def progress(self) -> Progress | None:
        """Return the last progress, possibly of the previous attempt, or None before the first."""
        content: bytes = await self._actor.progress.remote()
        return Progress.model_validate_json(content) if content else None

    async def watch(self, processes: list[PodProcess]) -> None:
        """Set the processes whose stacks can be dumped; each has called `register_stack_dumps`."""
        await self._actor.watch.remote(processes)

    async def flush(self) -> None:
        """Wait until the last update has been delivered."""
        if self._last_update is not None:
            await self._last_update


async def start_progress_actor(port: int, token: str) -> tuple[ProgressActor, Progress | None]:
    """Return the progress server of the cluster and its last progress; start it if necessary.

    The server of a lost head keeps its name until Ray has detected the loss. The call waits for
    the detection, at most HEAD_LOSS_SECONDS.
    """
    server = ray.remote(_Server).options(
        name=NAME,
        get_if_exists=True,
        lifetime="detached",
        num_cpus=0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node_id(), soft=False),
    )
    deadline = time.monotonic() + HEAD_LOSS_SECONDS
    while True:
        actor = ProgressActor(server.remote(port, token))
        try:
            return actor, await actor.progress()
        except RayActorError as error:
            if time.monotonic() > deadline:
                raise
            log.info(
                "waiting for Ray to detect the loss of the head that ran the progress server: %s",
                error,
            )
            await asyncio.sleep(0.5)
