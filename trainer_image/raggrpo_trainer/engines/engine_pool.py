"""The rollout engines as Ray actors that outlive a driver, and the driver's handle on them.

An engine belongs to the Ray cluster: it is detached, named, and lives in a detached placement
group, so that the next attempt finds it again instead of waiting for vLLM to start. Every call
carries the fencing epoch of the attempt; an engine refuses epochs below the newest it has seen.
"""

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ray

from raggrpo_api.exit_codes import ExitCode
from raggrpo_api.memory import concurrent_sequences
from raggrpo_api.trainer_config import TrainerConfig, content_hash
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.host.memory_kills import ACTOR_LOST
from raggrpo_trainer.host.placement import Placement
from raggrpo_trainer.host.pod_processes import PodProcess, this_process
from raggrpo_trainer.host.stacks import register

from .engine import AsyncEngine, EngineOptions, Generation, GenerationRequest, InProcessEngine
from .engine import environment as engine_environment

log = logging.getLogger(__name__)

MAX_REPLACEMENTS = 3
"""In-place replacements of engines per attempt; more of them point to something deeper."""


class StaleEpoch(Exception):
    """The caller belongs to an attempt that was superseded."""


class RolloutActor:
    """One vLLM engine in a process of its own."""

    def __init__(self, options: EngineOptions, asynchronous: bool) -> None:
        engine = AsyncEngine if asynchronous else InProcessEngine
        self._engine = engine(options)
        self._options = options
        self._epoch = 0

    async def adopt(self, epoch: int, log_folder: str, name: str) -> dict[str, Any]:
        """Take orders from this epoch only; end what an earlier one left running."""
        self._check(epoch)
        register(Path(log_folder), name)
        if epoch > self._epoch:
            self._epoch = epoch
            await self._engine.abort_all()
        return {"digest": options_digest(self._options), "process": this_process()}

    async def generate(
        self, epoch: int, requests: Sequence[GenerationRequest]
    ) -> AsyncIterator[list[tuple[int, Generation]]]:
        """Yield (index, completion) in the order of completion, those of one moment together."""
        self._check(epoch)
        tasks = {
            asyncio.ensure_future(self._finish(i, awaitable))
            for i, awaitable in enumerate(self._engine.start(requests))
        }
        while tasks:
            done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            yield [task.result() for task in done]

    async def load_weights(self, epoch: int, version: int, path: str, data: Any = None) -> None:
        """Load the weights file of rank 0; `data` holds its bytes when it is on another node."""
        self._check(epoch)
        if data is not None:
            local = Path(f"/dev/shm/raggrpo-engine-{os.getpid()}.safetensors")
            await asyncio.to_thread(local.write_bytes, memoryview(data))
            path = str(local)
        try:
            await self._engine.load_weights(path, version)
        except Exception:
            # Half of its layers may be taken apart: it is not trusted again, the pool replaces it.
            log.exception("loading weights failed, this engine ends")
            ray.actor.exit_actor()
        finally:
            if data is not None:
                await asyncio.to_thread(local.unlink)

    async def sleep(self, epoch: int) -> None:
        """Give GPU memory to the ranks."""
        self._check(epoch)
        await self._engine.sleep()

    async def wake(self, epoch: int) -> None:
        """Take GPU memory back."""
        self._check(epoch)
        await self._engine.wake()

    def _check(self, epoch: int) -> None:
        if epoch < self._epoch:
            raise StaleEpoch(f"epoch {epoch} was superseded by {self._epoch}")

    @staticmethod
    async def _finish(index: int, result: Awaitable[Generation]) -> tuple[int, Generation]:
        return index, await result


def options_digest(options: EngineOptions) -> str:
    """Return what makes a running engine reusable: its options."""
    return content_hash(asdict(options))


def engine_options(config: TrainerConfig, precision: str) -> EngineOptions:
    """Return the options of the job's engines for the pinned precision."""
    data, rollout = config.data, config.rollout
    on_cpu = config.resources.device == "CPU"
    length, concurrent = data.max_sequence_length, concurrent_sequences(data, rollout)
    return EngineOptions(
        model_path=config.model.path,
        device="cpu" if on_cpu else "cuda",
        precision=precision,
        max_model_len=length,
        max_num_batched_tokens=rollout.max_num_batched_tokens,
        max_num_seqs=concurrent,
        gpu_memory_utilization=rollout.gpu_memory_utilization,
        tensor_parallel_size=rollout.tensor_parallel_size,
        enable_prefix_caching=rollout.enable_prefix_caching,
        enable_chunked_prefill=rollout.enable_chunked_prefill,
        enforce_eager=rollout.enforce_eager,
        enable_sleep=config.resources.placement == "Colocated",
        kv_cache_tokens=length * concurrent if on_cpu else 0,
    )


class EnginePool:
    """The driver's engines: attach or start, generate, load weights, replace a lost one."""

    def __init__(
        self,
        config: TrainerConfig,
        options: EngineOptions,
        placement: Placement,
        epoch: int,
        log_folder: Path,
    ) -> None:
        self._config, self._options = config, options
        self._placement, self._epoch, self._log_folder = placement, epoch, str(log_folder)
        self.engines: list[Any] = []
        self.processes: list[PodProcess] = []
        self._weights: tuple[int, str, str, Callable[[], Any]] | None = None
        self._replacing = asyncio.Lock()
        self.replacements: list[str] = []
        """What was replaced in place, in words."""
        self.on_replaced: Callable[[], Awaitable[None]] | None = None
        """Called when `processes` has changed."""

    async def start(self) -> list[bool]:
        """Attach to running engines or start new ones; tells per engine whether it was reused."""
        number = self._config.world.num_engines
        results = await asyncio.gather(*(self._obtain(i) for i in range(number)))
        self.engines = [actor for actor, _, _ in results]
        self.processes = [info["process"] for _, info, _ in results]
        return [reused for _, _, reused in results]

    def submit(self, requests: Sequence[GenerationRequest]) -> list["asyncio.Future[Generation]"]:
        """Queue requests; those with one prompt go to one engine, where they share its prefix."""
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Generation]] = [loop.create_future() for _ in requests]
        shares: dict[int, list[int]] = {}
        homes: dict[tuple[int, ...], int] = {}
        for i, request in enumerate(requests):
            home = homes.setdefault(request.prompt_ids, len(homes) % len(self.engines))
            shares.setdefault(home, []).append(i)
        for home, indices in shares.items():
            work = [(requests[i], futures[i]) for i in indices]
            task = asyncio.ensure_future(self._stream(home, work))
            task.add_done_callback(_fail_rest([future for _, future in work]))
        return futures

    async def load_weights(
        self, version: int, path: str, node: str, fetch: Callable[[], Any]
    ) -> None:
        """Load the file of rank 0 into every engine; `fetch` gives its bytes to other nodes."""
        self._weights = (version, path, node, fetch)
        await asyncio.gather(*(self._load(i) for i in range(len(self.engines))))

    async def sleep(self) -> None:
        """Give GPU memory to the ranks, where they share devices."""
        if self._options.enable_sleep and self._options.device != "cpu":
            await asyncio.gather(*(e.sleep.remote(self._epoch) for e in self.engines))

    async def wake(self) -> None:
        """Take GPU memory back."""
        if self._options.enable_sleep and self._options.device != "cpu":
            await asyncio.gather(*(e.wake.remote(self._epoch) for e in self.engines))

    async def _obtain(self, index: int) -> tuple[Any, dict[str, Any], bool]:
        name = f"engine-{index}"
        digest = options_digest(self._options)
        try:
            actor = ray.get_actor(name)
        except ValueError:
            actor = None
        if actor is not None:
            try:
                info = await asyncio.wait_for(self._adopt(actor, name), 10)
                if info["digest"] == digest:
                    return actor, info, True
                log.info("%s has other options, replacing it", name)
            except (*ACTOR_LOST, TimeoutError) as error:
                log.info("%s does not answer, replacing it: %r", name, error)
            await end_actor(actor, name)
        actor = self._start(name, index)
        info = await self._adopt(actor, name)
        return actor, info, False

    async def _adopt(self, actor: Any, name: str) -> dict[str, Any]:
        info: dict[str, Any] = await actor.adopt.remote(self._epoch, self._log_folder, name)
        return info

    def _start(self, name: str, index: int) -> Any:
        world = self._config.world
        device = self._options.device
        asynchronous = device != "cpu"
        return (
            ray.remote(RolloutActor)
            .options(
                name=name,
                lifetime="detached",
                num_cpus=world.cpus_per_engine,
                num_gpus=world.gpus_per_engine,
                max_concurrency=1000,
                scheduling_strategy=self._placement.for_engine(index),
                runtime_env={"env_vars": engine_environment(device, world.threads_per_engine)},
            )
            .remote(self._options, asynchronous)
        )

    async def _stream(
        self, index: int, work: list[tuple[GenerationRequest, "asyncio.Future[Generation]"]]
    ) -> None:
        """Run requests on one engine; after its loss run the unfinished ones on its successor."""
        while work:
            engine = self.engines[index]
            try:
                stream = engine.generate.options(num_returns="streaming").remote(
                    self._epoch, [request for request, _ in work]
                )
                async for reference in stream:
                    for i, generation in await reference:
                        if not work[i][1].done():
                            work[i][1].set_result(generation)
                return
            except ACTOR_LOST as error:
                work = [(request, future) for request, future in work if not future.done()]
                await self._replace(index, engine, error)

    async def _load(self, index: int) -> None:
        if self._weights is None:
            return
        version, path, node, fetch = self._weights
        engine = self.engines[index]
        data = None if self.processes[index].node == node else fetch()
        try:
            await engine.load_weights.remote(self._epoch, version, path, data)
        except ACTOR_LOST as error:
            await self._replace(index, engine, error)

    async def _replace(self, index: int, lost: Any, error: Exception) -> None:
        """Start a new engine for a lost one and give it the current weights (in-place tier)."""
        async with self._replacing:
            if self.engines[index] is not lost:
                return  # another request has seen the loss first
            if len(self.replacements) >= MAX_REPLACEMENTS:
                raise TrainerError(
                    ExitCode.ROLLOUT_ENGINE_LOST,
                    f"engine-{index} was lost after {MAX_REPLACEMENTS} replacements: {error}",
                ) from error
            began = time.monotonic()
            log.warning("engine-%d is lost, replacing it in place: %s", index, error)
            await end_actor(lost, f"engine-{index}")
            self.engines[index] = self._start(f"engine-{index}", index)
            info = await self._adopt(self.engines[index], f"engine-{index}")
            self.processes[index] = info["process"]
            if self.on_replaced is not None:
                await self.on_replaced()
            await self._load(index)
            lasted = time.monotonic() - began
            self.replacements.append(
                f"RolloutEngineLost: engine-{index} replaced in place in {lasted:.0f} s"
            )


async def end_actor(actor: Any, name: str, timeout_seconds: float = 30.0) -> None:
    """Kill an actor and wait until its name is free.

    Raises TrainerError RANKS_STUCK when it is still there after the timeout.
    """
    ray.kill(actor)
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline:
        try:
            ray.get_actor(name)
        except ValueError:
            return
        await asyncio.sleep(0.1)
    raise TrainerError(
        ExitCode.RANKS_STUCK, f"{name} is still alive {timeout_seconds:.0f} s after a kill"
    )


def _fail_rest(
    futures: Sequence["asyncio.Future[Generation]"],
) -> Callable[["asyncio.Task[None]"], None]:
    """Return a callback that hands a failed stream's error to everybody who still waits for it."""

    def done(task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        for future in futures:
            if not future.done():
                if error is None:
                    future.cancel()
                else:
                    future.set_exception(error)

    return done
