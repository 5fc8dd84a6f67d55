"""The driver's handle to the FSDP2 ranks, which are `rank_actor.RankActor`s."""

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from raggrpo_api.fields.text import error_first
from raggrpo_api.memory.shortage import Shortage
from raggrpo_api.spec.monitoring import LogLevel, MonitoringSpec
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.exchange.groups import Group
from raggrpo_trainer.exchange.policy_config import PolicyConfig
from raggrpo_trainer.exchange.precision import MeasuredPrecision
from raggrpo_trainer.exchange.step_metrics import StepMetrics
from raggrpo_trainer.host.measured_device import MeasuredDevice
from raggrpo_trainer.host.oom_kills import ACTOR_LOST, is_oom_killed
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

from .rank_actor import RankActor, RankInfo
from .retained_state import RetainedState, TrainingPosition

log = logging.getLogger(__name__)

MAX_ERROR_CHARACTERS = 900
LEAVE_SECONDS = 5.0
"""How long idle ranks may take to respond to a driver that is about to exit."""
COMPLETED_SECONDS = 60.0
"""How long ranks may take to compute the checksum of their state after an error."""
UNFENCED_CALLS = ("address", "join_nccl_group")
"""Methods of a rank that take no epoch, because they do not use the model."""
BUILD_CALLS = ("build", "load")
"""Methods of a rank that allocate no activations; if one of them runs out of memory, the training
state is too large."""


_METHOD = re.compile(rf"{RankActor.__name__}\.(\w+)")


class Ranks:
    """All ranks of an attempt.

    The loss of a rank ends the attempt, as the others hang in collectives. Methods raise
    TrainerError: TRAINER_RANK_LOST, HOST_OUT_OF_MEMORY, CUDA_OUT_OF_MEMORY, SUPERSEDED or the error
    of the call.
    """

    def __init__(self, actors: Sequence[Any], epoch: int, infos: Sequence[RankInfo] = ()) -> None:
        self.actors = list(actors)
        self.infos = list(infos)
        self._epoch = epoch
        self._chunks: ChunkSource | None = None

    @classmethod
    def create(
        cls, config: TrainerConfig, placement: Placement, epoch: int, log_folder: Path
    ) -> "Ranks":
        """Start the ranks' processes, which outlive this driver; `build` loads the model."""
        world = config.world
        level = config.monitoring.log_level
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
        """Measure the speed of FP32 and BF16 on the CPU of rank 0."""
        measured: list[MeasuredPrecision] = await self._all(
            lambda a: a.measure_precision.remote(model_path), self.actors[:1]
        )
        return measured[0]

    async def measure_devices(self, kind: str) -> list[MeasuredDevice]:
        """Measure each rank's device (kind: cpu or cuda) before the model is loaded."""
        devices: list[MeasuredDevice] = await self._all(lambda a: a.measure_device.remote(kind))
        return devices

    async def build(self, config: PolicyConfig) -> None:
        """Join the ranks into one process group and load the model."""
        nodes = set(await self._all(lambda a: a.node.remote()))
        [rendezvous] = await self._all(
            lambda a: a.rendezvous.remote(on_one_node=len(nodes) == 1), self.actors[:1]
        )
        self.infos = await self._all(lambda a: a.build.remote(rendezvous, config))

    def flops_probe(self, monitoring: MonitoringSpec) -> Probe:
        """Return the probe of the ranks' MFU (share of peak FLOP/s)."""
        peaks = [info.peak_tflops for info in self.infos]
        info = self.infos[0]
        return flops_probe(monitoring, info.parameters, info.trained_parameters, peaks)

    async def adopt(self, log_folder: Path, level: LogLevel) -> list[RetainedState | None]:
        """Adopt the ranks for this epoch; return each rank's retained state, if any."""
        results = await self._all(lambda a: a.adopt.remote(self._epoch, str(log_folder), level))
        self.infos = [result[0] for result in results if result is not None]
        return [result and result[1] for result in results]

    async def checksums(self) -> set[int]:
        """Return the distinct checksums of the state in memory: a single one if all ranks agree."""
        return set(await self._all(lambda a: a.checksum.remote(self._epoch)))

    async def retain(self, position: TrainingPosition) -> None:
        """Make the ranks retain their current state and its `position` for the next driver."""
        await self._all(lambda a: a.retain.remote(self._epoch, position))

    async def completed(self) -> TrainingPosition | None:
        """Return the position after the last completed step if all ranks still have its state.

        Raises TimeoutError if a rank does not respond within COMPLETED_SECONDS.
        """
        async with asyncio.timeout(COMPLETED_SECONDS):
            states: list[RetainedState | None] = await self._all(
                lambda a: a.completed.remote(self._epoch)
            )
        first = states[0]
        is_equal = first is not None and all(state == first for state in states)
        return first.position if first is not None and is_equal else None

    async def step(self, groups: Sequence[Group], after: TrainingPosition) -> list[StepMetrics]:
        """Train one step; each rank takes its share of the batch."""
        batch = ray.put(tuple(groups))
        metrics: list[StepMetrics] = await self._all(
            lambda a: a.step.remote(self._epoch, batch, after)
        )
        return metrics

    async def logprobs(self, groups: Sequence[Group]) -> list[list[float]]:
        """Return the logprobs of the sampled tokens, one list per completion."""
        logprobs: list[list[list[float]]] = await self._all(
            lambda a: a.logprobs.remote(self._epoch, groups)
        )
        return logprobs[0]

    async def plain_logprobs(self, groups: Sequence[Group]) -> list[list[float]]:
        """Return the logprobs of a few completions as computed by the plain Hugging Face model."""
        logprobs: list[list[list[float]]] = await self._all(
            lambda a: a.plain_logprobs.remote(self._epoch, groups)
        )
        return logprobs[0]

    async def send_weights(self, version: int, backend: WeightTransferBackend) -> WeightTransfer:
        """Return a transfer of the current weights; for a file transfer, write the file first."""
        if backend is WeightTransferBackend.SHARED_MEMORY:
            return await self._write_weights(version)
        if self._chunks is None:  # reuse the source: engines join its NCCL group once
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
        epoch = {} if method in UNFENCED_CALLS else {"epoch": self._epoch}
        actors = self.actors if on_all else self.actors[:1]
        results: list[Any] = await self._all(
            lambda a: getattr(a, method).remote(**epoch, **arguments), actors
        )
        return results

    def save(self, folder: Path) -> dict[str, str]:
        """Write all shards; return their SHA-256 by name. Blocks: call it in a thread."""
        saved = self._wait([a.save.remote(self._epoch, str(folder)) for a in self.actors])
        return {name: digest for digests in saved for name, digest in digests.items()}

    def export(self, folder: Path) -> None:
        """Write a Hugging Face folder. Blocks: call it in a thread."""
        self._wait([a.export.remote(self._epoch, str(folder)) for a in self.actors])

    async def load(self, folder: Path, *, with_optimizer: bool = True) -> None:
        """Load a checkpoint into all ranks, or only its model."""
        await self._all(
            lambda a: a.load.remote(self._epoch, str(folder), with_optimizer=with_optimizer)
        )

    async def close(self) -> None:
        """Free the weights files in shared memory."""
        await self._all(lambda a: a.close.remote(), self.actors[:1])

    async def leave_to_next_driver(self) -> None:
        """Leave the ranks to the next driver, or kill all ranks if one of them does not respond.

        Raises nothing: the driver is about to exit.
        """
        calls = (_value(a.wait_for_driver.remote(self._epoch)) for a in self.actors)
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                await asyncio.gather(*calls)
        except (TimeoutError, RayError) as error:
            reason = task_error(error) if isinstance(error, RayTaskError) else error
            if isinstance(reason, TrainerError) and reason.exit_code is ExitCode.SUPERSEDED:
                return  # the next driver has adopted the ranks
            log.info("killing the ranks: %r", reason)
            self.kill()

    def kill(self) -> None:
        """Kill the ranks without waiting for them; they may hang."""
        for actor in self.actors:
            ray.kill(actor)

    async def _all(self, call: Callable[[Any], Any], actors: Iterable[Any] | None = None) -> Any:
        return await self._gather([call(a) for a in (actors or self.actors)])

    async def _gather(self, references: Sequence[Any]) -> Any:
        """Await all results; raise the first error at once, as the other ranks may hang."""
        tasks = [asyncio.ensure_future(_value(reference)) for reference in references]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                task.cancel()
        failed = next((t for t in done if t.exception() is not None), None)
        if failed is None:
            return [task.result() for task in tasks]
        raise await asyncio.to_thread(self._translated_error, failed.exception())

    def _wait(self, references: list[Any]) -> list[Any]:
        waiting, results = list(references), []
        while waiting:
            done, waiting = ray.wait(waiting)
            try:
                results += ray.get(done)
            except (*ACTOR_LOST, RayTaskError) as error:
                raise self._translated_error(error) from error
        return results

    def _translated_error(self, error: BaseException | None) -> BaseException:
        """Translate a rank's error into a TrainerError if its cause is known; blocks."""
        if isinstance(error, RayTaskError):
            return task_error(error)
        if isinstance(error, ACTOR_LOST):
            kills = {info.process.node: info.oom_kills for info in self.infos}
            if is_oom_killed(error, kills):
                return TrainerError(
                    ExitCode.HOST_OUT_OF_MEMORY,
                    "a trainer rank was killed because its pod ran out of memory; increase "
                    "resources.memory",
                    Shortage.TRAINER_HOST,
                )
            return TrainerError(ExitCode.TRAINER_RANK_LOST, f"a trainer rank exited: {error}")
        return error or RuntimeError("a rank failed without an exception")


def rank_name(epoch: int, rank: int) -> str:
    """Return a rank's actor name; `epoch` is the epoch whose driver started the rank."""
    return f"rank-{epoch}-{rank}"


async def _value(reference: Any) -> Any:
    return await reference


def task_error(error: RayTaskError) -> BaseException:
    """Return an error raised in a rank's call as OSError or TrainerError."""
    cause = error.as_instanceof_cause()
    if isinstance(cause, TrainerError):
        return cause
    if (shortage := out_of_memory(error)) is not None:
        if shortage.kind is Kind.HOST:
            message = f"a rank ran out of host memory: {shortage.line}; increase resources.memory"
            return TrainerError(ExitCode.HOST_OUT_OF_MEMORY, message, Shortage.TRAINER_HOST)
        method = _method_of(error)
        term = Shortage.TRAINING_STATE if method in BUILD_CALLS else Shortage.STEP
        message = f"a rank ran out of GPU memory in {method}: {shortage.line}"
        return TrainerError(ExitCode.CUDA_OUT_OF_MEMORY, message, term)
    if isinstance(cause, OSError):
        return cause
    return TrainerError(ExitCode.PROGRAM_ERROR, error_first(str(error), MAX_ERROR_CHARACTERS))


def _method_of(error: RayTaskError) -> str:
    """Return the method that failed, from Ray's text: the raised error has no `function_name`."""
    method = _METHOD.search(str(error))
    return method[1] if method else "a call"


def _environment(config: TrainerConfig) -> dict[str, str]:
    return {
        "OMP_NUM_THREADS": str(config.world.threads_per_rank),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
