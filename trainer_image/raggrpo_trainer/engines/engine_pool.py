"""The driver's handle to the rollout engines, which are `engine_actor.RolloutActor`s."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import ray

from raggrpo_api.fields.text import error_first
from raggrpo_api.spec.resources import Placement as Colocation
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.host.actors import kill_actor
from raggrpo_trainer.host.oom_kills import ACTOR_LOST, is_oom_killed
from raggrpo_trainer.host.out_of_memory import Kind, OutOfMemory, engine_shortage, out_of_memory
from raggrpo_trainer.host.placement import Placement
from raggrpo_trainer.host.pod_processes import PodProcess
from raggrpo_trainer.weights.transfer import ChunkTransferFailed, RankLost, WeightTransfer

from .engine_actor import EngineInfo, RolloutActor, options_digest
from .engine_failure import MAX_REASON_CHARS, EngineDead, memory_message
from .engine_options import EngineOptions, engine_environment
from .engine_receiver import EngineReceiver
from .generation import Generation, GenerationRequest, InvalidRequest
from .replacing import Replacing

log = logging.getLogger(__name__)

LOST = (*ACTOR_LOST, EngineDead)
"""Errors of an engine call after which the engine must be replaced."""
MAX_REPLACEMENTS = 3
"""Maximum number of in-place replacements per attempt."""
BATCH_SECONDS = 0.01
"""How long a request that was submitted alone waits for others to start with.

Applications of a step send their requests at about the same time. One call of the actor for all of
them costs less, and no engine step runs with only the first ones.
"""
Work = list[tuple[GenerationRequest, "asyncio.Future[Generation]"]]
"""Requests and the futures of their completions."""


class EnginePool:
    """Adopts or starts the engines, generates, loads weights, replaces lost engines."""

    def __init__(
        self,
        config: TrainerConfig,
        options: EngineOptions,
        placement: Placement,
        epoch: int,
        log_folder: Path,
        was_killed: Callable[[BaseException, Mapping[str, int]], bool] = is_oom_killed,
    ) -> None:
        self._config = config
        self._options = options
        self._sleeps = options.enable_sleep and options.device != "cpu"
        """Whether engines and ranks take turns on the same GPUs."""
        self._placement = placement
        self._epoch = epoch
        self._log_folder = str(log_folder)
        self._single_requests = count()
        """Numbers of requests that were submitted alone; they take turns on the engines."""
        self._waiting: dict[int, Work] = {}
        """By engine, the requests that were submitted alone and have not been sent."""
        self.engines: list[Any] = []
        self.processes: list[PodProcess] = []
        self._was_killed = was_killed
        self._memory_kills: list[int] = []
        """Number of OOM kills in each engine's pod at the time the engine was adopted."""
        self._weights: WeightTransfer | None = None
        self.replacing = Replacing()
        self.replacements: list[str] = []
        """One message per in-place replacement."""
        self.on_replaced: Callable[[], Awaitable[None]] | None = None
        """Called after `processes` has changed."""

    async def start(self, ranks_loaded: asyncio.Event) -> list[bool]:
        """Adopt running engines or start new ones; return whether each engine was reused.

        A new engine on the GPU of a rank starts after `ranks_loaded`. vLLM would otherwise
        attribute memory that the rank allocates meanwhile to the engine: too little of the engine's
        share would remain for the KV cache.
        """
        num_engines = self._config.world.num_engines
        results = await asyncio.gather(*(self._obtain(i, ranks_loaded) for i in range(num_engines)))
        self.engines = [actor for actor, _, _ in results]
        self.processes = [info.process for _, info, _ in results]
        self._memory_kills = [info.oom_kills for _, info, _ in results]
        return [reused for _, _, reused in results]

    def submit(self, requests: Sequence[GenerationRequest]) -> list["asyncio.Future[Generation]"]:
        """Queue requests; those with equal prompts or affinity go to the same engine."""
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Generation]] = [loop.create_future() for _ in requests]
        requests_of: dict[int, list[int]] = {}
        engine_of: dict[tuple[int, ...], int] = {}
        first = next(self._single_requests) if len(requests) == 1 else 0
        for i, request in enumerate(requests):
            number = first + len(engine_of) if request.affinity is None else request.affinity
            engine = engine_of.setdefault(request.prompt_ids, number % len(self.engines))
            requests_of.setdefault(engine, []).append(i)
        for engine, indices in requests_of.items():
            work = [(requests[i], futures[i]) for i in indices]
            if len(requests) > 1:
                self._send(engine, work)
            elif engine in self._waiting:
                self._waiting[engine] += work
            else:
                self._waiting[engine] = work
                loop.call_later(BATCH_SECONDS, self._send_waiting, engine)
        return futures

    async def load_weights(self, weights: WeightTransfer) -> None:
        """Wake all engines and load the weights; engines started later load the same weights."""
        self._weights = weights
        await weights.prepare()
        if weights.needs_all_engines:
            await asyncio.gather(*(self._wake_or_replace(i) for i in range(len(self.engines))))
        pending = list(range(len(self.engines)))
        while pending:
            engines = [self.engines[i] for i in pending]
            receivers = [self._receiver(self.engines[i], self.processes[i]) for i in pending]
            with self._translate_transfer_errors(weights.version):
                errors = await weights.load_into(receivers)
                for error in errors:
                    if error is not None and not isinstance(error, LOST):
                        raise error
            lost = [each for each in zip(pending, engines, errors, strict=True) if each[2]]
            are_loaded = await asyncio.gather(*(self._replace(i, *each) for i, *each in lost))
            pending = [i for (i, *_), done in zip(lost, are_loaded, strict=True) if not done]

    async def sleep(self) -> None:
        """Free GPU memory for colocated ranks."""
        if self._sleeps:
            await asyncio.gather(*(self._put_to_sleep(*each) for each in enumerate(self.engines)))

    async def _put_to_sleep(self, index: int, engine: Any) -> None:
        try:
            await engine.sleep.remote(self._epoch)
        except LOST as error:  # replaced on wake-up; until then it must not use memory
            name = f"engine-{index}"
            log.warning("%s did not free its memory and is killed: %s", name, error)
            await kill_actor(engine, name)

    async def _obtain(
        self, index: int, ranks_loaded: asyncio.Event
    ) -> tuple[Any, EngineInfo, bool]:
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
                log.info("replacing %s: its options differ from the job's", name)
            except (*LOST, TimeoutError) as error:
                log.info("replacing %s, which does not respond or has failed: %r", name, error)
            await kill_actor(actor, name)
        if self._sleeps:
            await ranks_loaded.wait()
        actor = self._start(name, index)
        info = await self._adopt_new(actor, name)
        return actor, info, False

    async def _adopt_new(self, actor: Any, name: str) -> EngineInfo:
        """Adopt a new engine. Raises TrainerError if the engine did not start."""
        try:
            return await self._adopt(actor, name)
        except LOST as error:
            if (shortage := out_of_memory(error)) is not None:
                raise self._memory_error(name, shortage) from error
            message = f"{_reason(error)}; {name} did not start"
            raise TrainerError(ExitCode.ROLLOUT_ENGINE_LOST, message) from error

    def _memory_error(self, name: str, shortage: OutOfMemory) -> TrainerError:
        """Return the error of an engine that ran out of memory, as its replacement would, too."""
        colocated = self._config.resources.placement is Colocation.COLOCATED
        short_of = engine_shortage(shortage, colocated=colocated)
        is_host = shortage.kind is Kind.HOST
        code = ExitCode.HOST_OUT_OF_MEMORY if is_host else ExitCode.CUDA_OUT_OF_MEMORY
        return TrainerError(code, f"{name}: {memory_message(shortage)}", short_of)

    async def _adopt(self, actor: Any, name: str) -> EngineInfo:
        level = self._config.monitoring.log_level
        info: EngineInfo = await actor.adopt.remote(self._epoch, self._log_folder, name, level)
        return info

    def _start(self, name: str, index: int) -> Any:
        world = self._config.world
        device = self._options.device
        env = engine_environment(
            device,
            world.threads_per_engine,
            self._config.monitoring.log_level,
            self._options.weight_way,
            self._options.precision,
        )
        actor_class = ray.remote(RolloutActor).options(
            name=name,
            lifetime="detached",
            num_cpus=world.cpus_per_engine,
            num_gpus=world.gpus_per_engine,
            max_concurrency=1000,
            scheduling_strategy=self._placement.for_engine(index),
            runtime_env={"env_vars": env},
        )
        return actor_class.remote(self._options, device != "cpu")

    def _send_waiting(self, engine: int) -> None:
        waiting = self._waiting.pop(engine)
        if work := [each for each in waiting if not each[1].done()]:
            self._send(engine, work)

    def _send(self, engine: int, work: Work) -> None:
        task = asyncio.ensure_future(self._stream(engine, work))
        task.add_done_callback(_fail_rest([future for _, future in work]))

    async def _stream(self, index: int, work: Work) -> None:
        """Run requests on one engine; if it is lost, rerun unfinished ones on its replacement."""
        while work:
            engine = self.engines[index]
            try:
                stream = engine.generate.options(num_returns="streaming").remote(
                    self._epoch, [request for request, _ in work]
                )
                async for reference in stream:
                    for i, outcome in await reference:
                        _complete(work[i][1], outcome)
                return
            except LOST as error:
                work = [(request, future) for request, future in work if not future.done()]
                await self._replace(index, engine, error)

    async def _wake_or_replace(self, index: int) -> None:
        """Wake an engine; while the current engine is lost, replace it and retry."""
        is_awake = False
        while not is_awake:
            engine = self.engines[index]
            try:
                await self._receiver(engine, self.processes[index]).wake()
                is_awake = True
            except LOST as error:
                await self._replace(index, engine, error)

    @contextmanager
    def _translate_transfer_errors(self, version: int) -> Iterator[None]:
        """Translate the errors of a weight transfer into TrainerError, which ends the attempt."""
        try:
            yield
        except RankLost as error:
            message = (
                f"a trainer rank exited before the engines loaded the weights of step {version}"
            )
            raise TrainerError(ExitCode.TRAINER_RANK_LOST, message) from error
        except ChunkTransferFailed as error:
            if (shortage := out_of_memory(error.__cause__ or error)) is not None:
                raise self._memory_error("an engine", shortage) from error
            message = (
                f"{_reason(error)}; an engine was lost during the weight transfer of step {version}"
            )
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
        """Replace a lost engine; the new one serves requests once it has the current weights.

        Returns True if this call loaded the weights, and False if another call has replaced the
        engine or if the new engine was lost while loading; the next call replaces the new engine.
        """
        name = f"engine-{index}"
        async with self.replacing.one_at_a_time():
            if self.engines[index] is not lost:
                return False  # another call has replaced the engine
            if isinstance(error, EngineDead) and (shortage := out_of_memory(error)) is not None:
                raise self._memory_error(name, shortage) from error
            if len(self.replacements) >= MAX_REPLACEMENTS and await self._is_oom_killed(
                index, error
            ):
                line = f"killed {MAX_REPLACEMENTS + 1} times because its pod ran out of memory"
                raise self._memory_error(name, OutOfMemory(Kind.HOST, line)) from error
            if len(self.replacements) >= MAX_REPLACEMENTS:
                raise TrainerError(
                    ExitCode.ROLLOUT_ENGINE_LOST,
                    f"{_reason(error)}; {name} was lost again "
                    f"after {MAX_REPLACEMENTS} replacements",
                ) from error
            started = time.monotonic()
            log.warning("replacing %s in place: %s", name, error)
            await kill_actor(lost, name)
            engine = self._start(name, index)
            info = await self._adopt_new(engine, name)
            self._memory_kills[index] = info.oom_kills
            self.processes[index] = info.process
            if self.on_replaced is not None:
                await self.on_replaced()
            is_loaded = False
            if self._weights is not None:
                with suppress(*LOST), self._translate_transfer_errors(self._weights.version):
                    receiver = self._receiver(engine, info.process)
                    await self._weights.load_into_replacement(receiver)
                    is_loaded = True
            self.engines[index] = engine
            seconds = time.monotonic() - started
            self.replacements.append(
                f"RolloutEngineLost: {name} replaced in place in {seconds:.0f} s"
            )
            return is_loaded

    async def _is_oom_killed(self, index: int, error: Exception) -> bool:
        """Return whether the lost engine's process was OOM-killed."""
        kills = {self.processes[index].node: self._memory_kills[index]}
        return await asyncio.to_thread(self._was_killed, error, kills)


def _reason(error: Exception) -> str:
    """Return the reason of a lost engine, first the error that its actor raised."""
    text = str(error).strip().replace(f"{EngineDead.__module__}.{EngineDead.__name__}: ", "")
    return error_first(text, MAX_REASON_CHARS)


def _complete(future: "asyncio.Future[Generation]", outcome: Generation | InvalidRequest) -> None:
    if future.done():
        return
    if isinstance(outcome, InvalidRequest):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def _fail_rest(
    futures: Sequence["asyncio.Future[Generation]"],
) -> Callable[["asyncio.Task[None]"], None]:
    """Return a callback that passes a failed stream's error to all pending futures."""

    def done(task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        for future in futures:
            if not future.done():
                if error is None:
                    future.cancel()
                else:
                    future.set_exception(error)

    return done
