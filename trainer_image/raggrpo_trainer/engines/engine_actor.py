"""One vLLM engine as a Ray actor that outlives the driver.

An engine belongs to the Ray cluster: the actor is detached, named, and in a detached placement
group, so the next attempt reuses it instead of waiting for vLLM to start. Every call carries the
attempt's fencing epoch; an engine rejects calls with an epoch older than the newest one it served.
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
from raggrpo_trainer.host.oom_kills import oom_kills
from raggrpo_trainer.host.pod_processes import PodProcess, this_process
from raggrpo_trainer.host.ray_logs import save_ray_logs
from raggrpo_trainer.host.stacks import register_stack_dumps
from raggrpo_trainer.weights.shared_memory import SharedMemoryReceiver

from .async_engine import AsyncEngine
from .engine import Engine
from .engine_failure import EngineDead, as_engine_dead, failure_reason, own_outputs
from .engine_options import EngineOptions
from .generation import Generation, GenerationRequest, InvalidRequest
from .in_process_engine import InProcessEngine

log = logging.getLogger(__name__)


class StaleEpoch(Exception):
    """The caller belongs to a superseded attempt."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Properties of an engine, reported to the attempt that adopts the engine."""

    digest: str
    """`options_digest` of the engine's options; an engine with other options is replaced."""
    process: PodProcess
    oom_kills: int = 0
    """Number of processes in the engine's pod that the kernel has OOM-killed so far."""


class RolloutActor:
    """One vLLM engine in its own process."""

    def __init__(self, options: EngineOptions, asynchronous: bool) -> None:
        engine = AsyncEngine if asynchronous else InProcessEngine
        with as_engine_dead(own_outputs(), Exception):  # Ray transfers only the error's message
            self._engine: Engine = engine(options)
        self._dead: EngineDead | None = None
        self._options = options
        self._weights = SharedMemoryReceiver()
        self._epoch = 0
        self._is_updating = False

    async def adopt(self, epoch: int, log_folder: str, name: str, level: LogLevel) -> EngineInfo:
        """Serve only this epoch from now on; abort the requests of older epochs.

        Raises EngineDead if the previous driver exited during a chunk transfer.
        """
        self._check(epoch)
        if self._is_updating and epoch > self._epoch:
            self._dead = EngineDead("the driver exited during a weight transfer to this engine")
            raise self._dead
        register_stack_dumps(Path(log_folder), name)
        save_ray_logs(Path(log_folder))
        configure_logs(level)
        log.debug("%s serves epoch %d", name, epoch)
        if epoch > self._epoch:
            self._epoch = epoch
            await self._engine.abort_all()
        return EngineInfo(options_digest(self._options), this_process(), oom_kills())

    async def generate(
        self, epoch: int, requests: Sequence[GenerationRequest]
    ) -> AsyncIterator[list[tuple[int, Generation | InvalidRequest]]]:
        """Yield batches of (index of the request, outcome) as requests finish.

        An invalid request does not end the others.
        """
        self._check(epoch)
        tasks = {
            asyncio.ensure_future(self._finish(i, awaitable))
            for i, awaitable in enumerate(self._engine.start(requests))
        }
        while tasks:
            done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            yield [task.result() for task in done]

    async def load_weights(self, epoch: int, version: int, handle: str, data: Any = None) -> None:
        """Load a weights file; `data` is its content if the file is on another node."""
        self._check(epoch)
        async with self._weights.received(handle, data) as path:
            await self._run(self._engine.load_weights(path, version))
        log.debug("loaded the weights of step %d", version)

    async def start_update(self, epoch: int, init_info: Mapping[str, Any] | None) -> None:
        """Pause generation and prepare for tensor chunks."""
        self._check(epoch)
        self._is_updating = True
        await self._run(self._engine.start_update(init_info))

    async def load_chunk(self, epoch: int, chunk: Mapping[str, Any]) -> None:
        """Load one tensor chunk."""
        self._check(epoch)
        await self._run(self._engine.load_chunk(chunk))

    async def finish_update(self, epoch: int, version: int) -> None:
        """Apply the loaded chunks and resume generation."""
        self._check(epoch)
        await self._run(self._engine.finish_update(version))
        self._is_updating = False
        log.debug("loaded the weights of step %d", version)

    async def sleep(self, epoch: int) -> None:
        """Free GPU memory for the ranks."""
        self._check(epoch)
        await self._run(self._engine.sleep())

    async def wake(self, epoch: int) -> None:
        """Reallocate the GPU memory freed by `sleep`."""
        self._check(epoch)
        await self._run(self._engine.wake())

    async def _run(self, change: Awaitable[None]) -> None:
        try:
            await change
        except Exception as error:
            # Some layers may be loaded, or some memory mapped: the pool replaces this engine.
            log.exception("this engine rejects all further calls")
            self._dead = EngineDead(failure_reason(error, []))
            raise self._dead from error

    def _check(self, epoch: int) -> None:
        if self._dead is not None:
            raise self._dead
        if epoch < self._epoch:
            raise StaleEpoch(f"epoch {epoch} was superseded by epoch {self._epoch}")

    @staticmethod
    async def _finish(
        index: int, result: Awaitable[Generation]
    ) -> tuple[int, Generation | InvalidRequest]:
        try:
            return index, await result
        except InvalidRequest as error:
            return index, error


def options_digest(options: EngineOptions) -> str:
    """Return the digest that decides whether a running engine is reused."""
    return content_hash(asdict(options))
