"""The driver's handle to the FSDP2 ranks. What a rank does is in `rank_actor`."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from raggrpo_api.memory.shortage import Shortage
from raggrpo_api.spec.monitoring import LogLevel
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.exchange.groups import Group
from raggrpo_trainer.exchange.policy_config import PolicyConfig
from raggrpo_trainer.exchange.precision import MeasuredPrecision
from raggrpo_trainer.exchange.step_metrics import StepMetrics
from raggrpo_trainer.host.measured_device import MeasuredDevice
from raggrpo_trainer.host.memory_kills import ACTOR_LOST, killed_for_memory
from raggrpo_trainer.host.out_of_memory import Kind, out_of_memory
from raggrpo_trainer.host.placement import Placement
from raggrpo_trainer.progress.step_probes import Probe, flops_probe
from raggrpo_trainer.weights.backend import WeightTransferBackend
from raggrpo_trainer.weights.chunk_sources import chunk_source
from raggrpo_trainer.weights.transfer import (
    ChunkSource,
    ChunkTransfer,
    FileTransfer,
    WeightTransfer,
)

from .held import Held, Position
from .rank_actor import RankActor, RankInfo

log = logging.getLogger(__name__)

LEAVE_SECONDS = 5.0
"""How long idle ranks may take to answer a driver that ends."""
UNFENCED = ("address", "join_nccl_group")
"""Calls of a rank that carry no epoch: they touch no model."""
BUILDING = ("build", "load")
"""Calls of a rank that hold no activations: what is short in them is the model's own state."""


class Ranks:
    """All ranks of an attempt. The loss of one ends the attempt: its peers hang in collectives."""

    def __init__(self, actors: Sequence[Any], epoch: int, infos: Sequence[RankInfo] = ()) -> None:
        self.actors, self.infos = list(actors), list(infos)
        self._epoch = epoch
        self._chunks: ChunkSource | None = None

    @classmethod
    def create(
        cls, config: TrainerConfig, placement: Placement, epoch: int, log_folder: Path
    ) -> "Ranks":
        """Start the ranks' processes, which outlive this driver; `build` loads the model."""
        world, level = config.world, config.monitoring.log_level
        return cls(
            [
                ray.remote(RankActor)
                .options(
                    name=rank_name(epoch, rank),
                    lifetime="detached",
                    num_cpus=world.cpus_per_rank,
                    num_gpus=world.gpus_per_rank,
                    scheduling_strategy=placement.for_rank(rank),
                    runtime_env={"env_vars": _environment(config)},
                )
                .remote(rank, world.num_ranks, epoch, str(log_folder), level)
                for rank in range(world.num_ranks)
            ],
            epoch,
        )

    async def measure_precision(self, model_path: str) -> MeasuredPrecision:
        """Measure both precisions on a rank's CPU."""
        found: list[MeasuredPrecision] = await self._all(
            lambda a: a.measure_precision.remote(model_path), self.actors[:1]
        )
        return found[0]

    async def measure_devices(self, kind: str) -> list[MeasuredDevice]:
        """Return each rank's device, cpu or cuda, before the model is on it."""
        found: list[MeasuredDevice] = await self._all(lambda a: a.measure_device.remote(kind))
        return found

    async def build(self, config: PolicyConfig) -> None:
        """Join the ranks into one process group and load the model."""
        [address] = await self._all(lambda a: a.address.remote(), self.actors[:1])
        self.infos = await self._all(lambda a: a.build.remote(address, config))

    def flops_probe(self, every_steps: int) -> Probe:
        """Return the probe of the share of peak FLOP/s that the ranks reach."""
        peaks = [info.peak_tflops for info in self.infos]
        return flops_probe(every_steps, self.infos[0].parameters, peaks)

    async def adopt(self, log_folder: Path, level: LogLevel) -> list[Held | None]:
        """Have the ranks serve this epoch from now on, and return what each holds."""
        found = await self._all(lambda a: a.adopt.remote(self._epoch, str(log_folder), level))
        self.infos = [each[0] for each in found if each is not None]
        return [each and each[1] for each in found]

    async def checksums(self) -> set[int]:
        """Return the checksum of the state in memory as each rank finds it."""
        return set(await self._all(lambda a: a.checksum.remote(self._epoch)))

    async def hold(self, position: Position) -> None:
        """Have the ranks hold their state for the next driver as that of this position."""
        await self._all(lambda a: a.hold.remote(self._epoch, position))

    async def step(self, groups: Sequence[Group], after: Position) -> list[StepMetrics]:
        """Train one step; each rank picks its own share of the batch."""
        batch = ray.put(tuple(groups))
        metrics: list[StepMetrics] = await self._all(
            lambda a: a.step.remote(self._epoch, batch, after)
        )
        return metrics

    async def logprobs(self, groups: Sequence[Group]) -> list[list[float]]:
        """Return log-probabilities of the sampled tokens; every rank computes all of them."""
        found: list[list[list[float]]] = await self._all(
            lambda a: a.logprobs.remote(self._epoch, groups)
        )
        return found[0]

    async def plain_logprobs(self, groups: Sequence[Group]) -> list[list[float]]:
        """Return the same as the plain Hugging Face model computes them; for a few completions."""
        found: list[list[list[float]]] = await self._all(
            lambda a: a.plain_logprobs.remote(self._epoch, groups)
        )
        return found[0]

    async def send_weights(self, version: int, backend: WeightTransferBackend) -> WeightTransfer:
        """Return a transfer of the current weights; writes them first if it is a file."""
        if backend is WeightTransferBackend.SHARED_MEMORY:
            return await self._write_weights(version)
        if self._chunks is None:  # reused: engines join its NCCL group once
            self._chunks = chunk_source(backend, self._call)
        return ChunkTransfer(version, self._chunks, lambda: self._write_weights(version))

    async def _write_weights(self, version: int) -> FileTransfer:
        handles = await self._all(lambda a: a.write_weights.remote(self._epoch, version))
        handle = handles[0]
        return FileTransfer(
            version,
            handle,
            node=self.infos[0].process.node,
            fetch=lambda: self.actors[0].weights_file.remote(handle),
        )

    async def _call(self, method: str, on_all: bool, arguments: Mapping[str, Any]) -> list[Any]:
        fenced = {} if method in UNFENCED else {"epoch": self._epoch}
        actors = self.actors if on_all else self.actors[:1]
        found: list[Any] = await self._all(
            lambda a: getattr(a, method).remote(**fenced, **arguments), actors
        )
        return found

    def save(self, folder: Path) -> None:
        """Write all shards; blocks (for use in a thread)."""
        self._wait([a.save.remote(self._epoch, str(folder)) for a in self.actors])

    def export(self, folder: Path) -> None:
        """Write a Hugging Face folder; blocks (for use in a thread)."""
        self._wait([a.export.remote(self._epoch, str(folder)) for a in self.actors])

    async def load(self, folder: Path) -> None:
        """Load a checkpoint into all ranks."""
        await self._all(lambda a: a.load.remote(self._epoch, str(folder)))

    async def close(self) -> None:
        """Remove what the ranks left in shared memory."""
        await self._all(lambda a: a.close.remote(), self.actors[:1])

    async def leave(self) -> None:
        """Leave the ranks to the next driver with what they hold, or end them if one is silent.

        Raises nothing: the driver ends, too.
        """
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                await asyncio.gather(*(_value(a.leave.remote(self._epoch)) for a in self.actors))
        except (TimeoutError, RayError) as error:
            reason = of_task(error) if isinstance(error, RayTaskError) else error
            if isinstance(reason, TrainerError) and reason.exit_code is ExitCode.SUPERSEDED:
                return  # they have another driver already
            log.info("the ranks are ended: %r", reason)
            self.end()

    def end(self) -> None:
        """Kill the ranks without waiting for them; they may hang."""
        for actor in self.actors:
            ray.kill(actor)

    async def _all(self, call: Callable[[Any], Any], actors: Iterable[Any] | None = None) -> Any:
        return await self._gather([call(a) for a in (actors or self.actors)])

    async def _gather(self, references: Sequence[Any]) -> Any:
        """Await all results; raise the first failure at once, as its peers may hang forever."""
        tasks = [asyncio.ensure_future(_value(reference)) for reference in references]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                task.cancel()
        failed = next((t for t in done if t.exception() is not None), None)
        if failed is None:
            return [task.result() for task in tasks]
        raise await asyncio.to_thread(self._lost, failed.exception())

    def _wait(self, references: list[Any]) -> None:
        waiting = list(references)
        while waiting:
            done, waiting = ray.wait(waiting)
            try:
                ray.get(done)
            except (*ACTOR_LOST, RayTaskError) as error:
                raise self._lost(error) from error

    def _lost(self, error: BaseException | None) -> BaseException:
        """Translate a rank's failure into a TrainerError where its cause is known; blocks."""
        if isinstance(error, RayTaskError):
            return of_task(error)
        if isinstance(error, ACTOR_LOST):
            kills = {info.process.node: info.memory_kills for info in self.infos}
            if killed_for_memory(error, kills):
                return TrainerError(
                    ExitCode.HOST_OUT_OF_MEMORY,
                    "a trainer rank used up its pod's memory and was ended: raise resources.memory",
                    Shortage.TRAINER_HOST,
                )
            return TrainerError(ExitCode.TRAINER_RANK_LOST, f"a trainer rank died: {error}")
        return error or RuntimeError("a rank failed without an error")


def rank_name(epoch: int, rank: int) -> str:
    """Return a rank's actor name, with the epoch in which it was started."""
    return f"rank-{epoch}-{rank}"


async def _value(reference: Any) -> Any:
    return await reference


def of_task(error: RayTaskError) -> BaseException:
    """Translate the error of a call that failed inside a rank."""
    cause = error.as_instanceof_cause()
    if isinstance(cause, TrainerError):
        return cause
    if (found := out_of_memory(error)) is not None:
        if found.kind is Kind.HOST:
            message = f"a trainer rank: {found.line}: raise resources.memory"
            return TrainerError(ExitCode.HOST_OUT_OF_MEMORY, message, Shortage.TRAINER_HOST)
        called = error.function_name.rstrip("()").rsplit(".", 1)[-1]
        term = Shortage.TRAINING_STATE if called in BUILDING else Shortage.STEP
        message = f"a trainer rank in {error.function_name}: {found.line}"
        return TrainerError(ExitCode.CUDA_OUT_OF_MEMORY, message, term)
    if isinstance(cause, OSError):
        return cause
    return TrainerError(ExitCode.PROGRAM_ERROR, str(error)[-900:])


def _environment(config: TrainerConfig) -> dict[str, str]:
    threads = str(config.world.threads_per_rank)
    return {"OMP_NUM_THREADS": threads, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
