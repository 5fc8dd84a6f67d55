"""One vLLM engine as a Ray actor that outlives the driver.

An engine belongs to the Ray cluster: the actor is detached, named, and in a detached placement
group, so the next attempt finds it instead of waiting for vLLM to start. Every call carries the
attempt's fencing epoch; an engine rejects epochs older than the newest it has seen.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from raggrpo_api.spec.monitoring import LogLevel
from raggrpo_api.trainer.config import content_hash
from raggrpo_trainer.host.logs import configure_logs
from raggrpo_trainer.host.memory_kills import memory_kills
from raggrpo_trainer.host.pod_processes import PodProcess, this_process
from raggrpo_trainer.host.ray_logs import keep_ray_logs
from raggrpo_trainer.host.stacks import register
from raggrpo_trainer.weights.shared_memory import SharedMemoryReceiver
from raggrpo_trainer.weights.transfer import WeightReceiver

from .engine import (
    AsyncEngine,
    Engine,
    EngineOptions,
    Generation,
    GenerationRequest,
    InProcessEngine,
)
from .engine_failure import EngineDead, dead_on, own_outputs, reason_of

log = logging.getLogger(__name__)


class StaleEpoch(Exception):
    """The caller belongs to an attempt that was superseded."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine reports to the attempt that adopts it."""

    digest: str
    """Of its options; an engine with different ones is not reused."""
    process: PodProcess
    memory_kills: int = 0
    """Processes in its pod that the kernel had OOM-killed by then."""


class RolloutActor:
    """One vLLM engine in a process of its own."""

    def __init__(self, options: EngineOptions, asynchronous: bool) -> None:
        engine = AsyncEngine if asynchronous else InProcessEngine
        with dead_on(own_outputs(), Exception):  # Ray passes on only the words of this error
            self._engine: Engine = engine(options)
        self._dead: EngineDead | None = None
        self._options = options
        self._weights: WeightReceiver = SharedMemoryReceiver()
        self._epoch, self._is_updating = 0, False

    async def adopt(self, epoch: int, log_folder: str, name: str, level: LogLevel) -> EngineInfo:
        """Accept only this epoch from now on; abort what an earlier one left running."""
        self._check(epoch)
        if self._is_updating and epoch > self._epoch:
            self._dead = EngineDead("its driver ended while weights were sent in parts")
            raise self._dead
        register(Path(log_folder), name)
        keep_ray_logs(Path(log_folder))
        configure_logs(level)
        log.debug("%s serves epoch %d", name, epoch)
        if epoch > self._epoch:
            self._epoch = epoch
            await self._engine.abort_all()
        return EngineInfo(options_digest(self._options), this_process(), memory_kills())

    async def generate(
        self, epoch: int, requests: Sequence[GenerationRequest]
    ) -> AsyncIterator[list[tuple[int, Generation]]]:
        """Yield (index, completion) as they finish, in batches."""
        self._check(epoch)
        tasks = {
            asyncio.ensure_future(self._finish(i, awaitable))
            for i, awaitable in enumerate(self._engine.start(requests))
        }
        while tasks:
            done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            yield [task.result() for task in done]

    async def load_weights(self, epoch: int, version: int, handle: str, data: Any = None) -> None:
        """Load the weights a rank sent; `data` holds them if that rank is on another node."""
        self._check(epoch)
        async with self._weights.received(handle, data) as path:
            await self._or_dead(self._engine.load_weights(path, version))
        log.debug("weights of step %d are loaded", version)

    async def begin_update(self, epoch: int, way: Mapping[str, Any] | None) -> None:
        """Stop generating and expect weights in parts."""
        self._check(epoch)
        self._is_updating = True
        await self._or_dead(self._engine.begin_update(way))

    async def read_part(self, epoch: int, part: Mapping[str, Any]) -> None:
        """Read one part of the weights."""
        self._check(epoch)
        await self._or_dead(self._engine.read_part(part))

    async def finish_update(self, epoch: int, version: int) -> None:
        """Use the parts that were read, and go on generating."""
        self._check(epoch)
        await self._or_dead(self._engine.finish_update(version))
        self._is_updating = False
        log.debug("weights of step %d are loaded", version)

    async def sleep(self, epoch: int) -> None:
        """Free GPU memory for the ranks."""
        self._check(epoch)
        await self._engine.sleep()

    async def wake(self, epoch: int) -> None:
        """Reclaim GPU memory."""
        self._check(epoch)
        await self._engine.wake()

    async def _or_dead(self, loading: Awaitable[None]) -> None:
        try:
            await loading
        except Exception as error:
            # Some layers may be half loaded: it refuses every call, and the pool replaces it.
            log.exception("loading weights failed, this engine is not used again")
            self._dead = EngineDead(reason_of(error, []))
            raise self._dead from error

    def _check(self, epoch: int) -> None:
        if self._dead is not None:
            raise self._dead
        if epoch < self._epoch:
            raise StaleEpoch(f"epoch {epoch} was superseded by {self._epoch}")

    @staticmethod
    async def _finish(index: int, result: Awaitable[Generation]) -> tuple[int, Generation]:
        return index, await result


def options_digest(options: EngineOptions) -> str:
    """Return the digest that decides whether a running engine can be reused."""
    return content_hash(asdict(options))
