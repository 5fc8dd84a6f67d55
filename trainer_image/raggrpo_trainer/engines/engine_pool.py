"""The driver's handle on the rollout engines. What an engine does is in `engine_actor`."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray

from raggrpo_api.memory.arithmetic import concurrent_sequences
from raggrpo_api.spec.resources import Placement as Colocation
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.host.actors import end_actor
from raggrpo_trainer.host.memory_kills import ACTOR_LOST, killed_for_memory
from raggrpo_trainer.host.out_of_memory import Kind, OutOfMemory, of_engine, out_of_memory
from raggrpo_trainer.host.placement import Placement
from raggrpo_trainer.host.pod_processes import PodProcess
from raggrpo_trainer.weights.transfer import PartsBroken, SenderLost, SentWeights, weight_way

from .engine import EngineOptions, Generation, GenerationRequest, environment
from .engine_actor import EngineInfo, RolloutActor, options_digest
from .engine_failure import EngineDead
from .engine_receiver import EngineReceiver

log = logging.getLogger(__name__)

LOST = (*ACTOR_LOST, EngineDead)
"""What a call of an engine raises once the engine has to be replaced."""
MAX_REPLACEMENTS = 3
"""In-place replacements per attempt; needing more points to a deeper problem."""


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
        weight_way=weight_way(config.resources),
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
        was_killed: Callable[[BaseException, Mapping[str, int]], bool] = killed_for_memory,
    ) -> None:
        self._config, self._options = config, options
        self._sleeps = options.enable_sleep and options.device != "cpu"
        self._placement, self._epoch, self._log_folder = placement, epoch, str(log_folder)
        self.engines: list[Any] = []
        self.processes: list[PodProcess] = []
        self._was_killed, self._kills = was_killed, list[int]()
        """Of each engine's pod, when the engine began."""
        self._weights: SentWeights | None = None
        self._replacing = asyncio.Lock()
        self.replacements: list[str] = []
        """One message per in-place replacement."""
        self.on_replaced: Callable[[], Awaitable[None]] | None = None
        """Called when `processes` has changed."""

    async def start(self) -> list[bool]:
        """Attach to running engines or start new ones; return for each whether it was reused."""
        number = self._config.world.num_engines
        results = await asyncio.gather(*(self._obtain(i) for i in range(number)))
        self.engines = [actor for actor, _, _ in results]
        self.processes = [info.process for _, info, _ in results]
        self._kills = [info.memory_kills for _, info, _ in results]
        return [reused for _, _, reused in results]

    def submit(self, requests: Sequence[GenerationRequest]) -> list["asyncio.Future[Generation]"]:
        """Queue requests; equal prompts go to one engine, where they share the cached prefix."""
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

    async def load_weights(self, weights: SentWeights) -> None:
        """Have every engine wake and load this version; a later replacement loads it too."""
        self._weights = weights
        if await weights.prepare():
            await asyncio.gather(*(self._reach(i) for i in range(len(self.engines))))
        waiting = list(range(len(self.engines)))
        while waiting:
            tried = [self.engines[i] for i in waiting]
            receivers = [self._receiver(self.engines[i], self.processes[i]) for i in waiting]
            with self._told(weights.version):
                errors = await weights.load_into(receivers)
                for failed in errors:
                    if failed is not None and not isinstance(failed, LOST):
                        raise failed
            lost = [each for each in zip(waiting, tried, errors, strict=True) if each[2]]
            loaded = await asyncio.gather(*(self._replace(i, *each) for i, *each in lost))
            waiting = [i for (i, *_), done in zip(lost, loaded, strict=True) if not done]

    async def sleep(self) -> None:
        """Free GPU memory for ranks that share the devices."""
        if self._sleeps:
            await asyncio.gather(*(self._put_to_sleep(engine) for engine in self.engines))

    async def _put_to_sleep(self, engine: Any) -> None:
        with suppress(*LOST):  # it holds no memory then, and is replaced when it is woken
            await engine.sleep.remote(self._epoch)

    async def _obtain(self, index: int) -> tuple[Any, EngineInfo, bool]:
        name = f"engine-{index}"
        digest = options_digest(self._options)
        try:
            actor = ray.get_actor(name)
        except ValueError:
            actor = None
        if actor is not None:
            try:
                info = await asyncio.wait_for(self._adopt(actor, name), 10)
                if info.digest == digest:
                    return actor, info, True
                log.info("%s has other options, replacing it", name)
            except (*LOST, TimeoutError) as error:
                log.info("%s does not answer, replacing it: %r", name, error)
            await end_actor(actor, name)
        actor = self._start(name, index)
        info = await self._adopt_new(actor, name)
        return actor, info, False

    async def _adopt_new(self, actor: Any, name: str) -> EngineInfo:
        """Adopt an engine that was just begun; what kept it from starting ends the attempt."""
        try:
            return await self._adopt(actor, name)
        except LOST as error:
            if (found := out_of_memory(error)) is not None:
                raise self._memory_error(name, found) from error
            message = f"{name} did not start: {_last_lines(str(error))}"
            raise TrainerError(ExitCode.ROLLOUT_ENGINE_LOST, message) from error

    def _memory_error(self, name: str, found: OutOfMemory) -> TrainerError:
        """Return what ends the attempt: a replacement would run out of the same memory."""
        colocated = self._config.resources.placement is Colocation.COLOCATED
        short_of, on_host = of_engine(found, colocated=colocated), found.kind is Kind.HOST
        code = ExitCode.HOST_OUT_OF_MEMORY if on_host else ExitCode.CUDA_OUT_OF_MEMORY
        return TrainerError(code, f"{name}: {found.line}", short_of)

    async def _adopt(self, actor: Any, name: str) -> EngineInfo:
        level = self._config.monitoring.log_level
        info: EngineInfo = await actor.adopt.remote(self._epoch, self._log_folder, name, level)
        return info

    def _start(self, name: str, index: int) -> Any:
        world, level = self._config.world, self._config.monitoring.log_level
        device, way = self._options.device, self._options.weight_way
        actor_class = ray.remote(RolloutActor).options(
            name=name,
            lifetime="detached",
            num_cpus=world.cpus_per_engine,
            num_gpus=world.gpus_per_engine,
            max_concurrency=1000,
            scheduling_strategy=self._placement.for_engine(index),
            runtime_env={"env_vars": environment(device, world.threads_per_engine, level, way)},
        )
        return actor_class.remote(self._options, device != "cpu")

    async def _stream(
        self, index: int, work: list[tuple[GenerationRequest, "asyncio.Future[Generation]"]]
    ) -> None:
        """Run requests on one engine; if it is lost, run the unfinished ones on its replacement."""
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
            except LOST as error:
                work = [(request, future) for request, future in work if not future.done()]
                await self._replace(index, engine, error)

    async def _reach(self, index: int) -> None:
        """Wake an engine; one that was lost is replaced now, since among parts it cannot be."""
        is_awake = False
        while not is_awake:
            engine = self.engines[index]
            try:
                await self._receiver(engine, self.processes[index]).wake()
                is_awake = True
            except LOST as error:
                await self._replace(index, engine, error)

    @contextmanager
    def _told(self, version: int) -> Iterator[None]:
        """Translate what ends the attempt while weights are loaded."""
        try:
            yield
        except SenderLost as error:
            message = f"a trainer rank died before step {version}'s weights were read"
            raise TrainerError(ExitCode.TRAINER_RANK_LOST, message) from error
        except PartsBroken as error:
            if (found := out_of_memory(error.__cause__ or error)) is not None:
                raise self._memory_error("an engine", found) from error
            message = f"an engine was lost while step {version}'s weights were sent in parts: "
            message += _last_lines(str(error))
            raise TrainerError(ExitCode.ROLLOUT_ENGINE_LOST, message) from error

    def _receiver(self, engine: Any, process: PodProcess) -> EngineReceiver:
        return EngineReceiver(
            engine,
            process,
            num_devices=self._options.tensor_parallel_size,
            epoch=self._epoch,
            sleeps=self._sleeps,
        )

    async def _replace(self, index: int, lost: Any, error: Exception) -> bool:
        """Replace a lost engine by one that serves requests once it has the current weights.

        Returns whether this call gave it weights: another may have replaced it already, or it was
        lost while it loaded them; then whoever calls it next replaces it.
        """
        name = f"engine-{index}"
        async with self._replacing:
            if self.engines[index] is not lost:
                return False  # another request noticed the loss first
            if isinstance(error, EngineDead) and (found := out_of_memory(error)) is not None:
                raise self._memory_error(name, found) from error
            if len(self.replacements) >= MAX_REPLACEMENTS and await self._starved(index, error):
                line = f"ended {MAX_REPLACEMENTS + 1} times for its pod's memory"
                raise self._memory_error(name, OutOfMemory(Kind.HOST, line)) from error
            if len(self.replacements) >= MAX_REPLACEMENTS:
                raise TrainerError(
                    ExitCode.ROLLOUT_ENGINE_LOST,
                    f"{name} was lost after {MAX_REPLACEMENTS} replacements: {error}",
                ) from error
            began = time.monotonic()
            log.warning("%s is lost, replacing it in place: %s", name, error)
            await end_actor(lost, name)
            engine = self._start(name, index)
            info = await self._adopt_new(engine, name)
            process, self._kills[index] = info.process, info.memory_kills
            self.processes[index] = process
            if self.on_replaced is not None:
                await self.on_replaced()
            is_loaded = False
            if self._weights is not None:
                with suppress(*LOST), self._told(self._weights.version):
                    await self._weights.load_late(self._receiver(engine, process))
                    is_loaded = True
            self.engines[index] = engine
            lasted = time.monotonic() - began
            self.replacements.append(
                f"RolloutEngineLost: {name} replaced in place in {lasted:.0f} s"
            )
            return is_loaded

    async def _starved(self, index: int, error: Exception) -> bool:
        """Return whether the engine's process was ended for the memory of its pod."""
        kills = {self.processes[index].node: self._kills[index]}
        return await asyncio.to_thread(self._was_killed, error, kills)


def _last_lines(text: str) -> str:
    """Return the end of an error's text, which names the exception."""
    return "\n".join(text.strip().splitlines()[-4:])[-600:]


def _fail_rest(
    futures: Sequence["asyncio.Future[Generation]"],
) -> Callable[["asyncio.Task[None]"], None]:
    """Return a callback that passes a failed stream's error to every future still waiting."""

    def done(task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        for future in futures:
            if not future.done():
                if error is None:
                    future.cancel()
                else:
                    future.set_exception(error)

    return done
