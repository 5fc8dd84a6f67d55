"""The FSDP2 ranks as Ray actors, and the driver's handle on them. Arithmetic is in `policy`."""

import asyncio
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.exceptions import RayActorError, RayTaskError

from raggrpo_api.exit_codes import ExitCode
from raggrpo_api.model import Attention
from raggrpo_api.trainer_config import TrainerConfig

from .device_peaks import peak_tflops
from .errors import TrainerError
from .memory_kills import killed_for_memory, memory_kills
from .packing import Group
from .placement import Placement
from .pod_processes import PodProcess, this_process
from .policy import Policy, init_process_group
from .precision import MeasuredPrecision, measure_precision
from .rollout import end_actor
from .stacks import register
from .step_metrics import StepMetrics
from .step_probes import Probe, flops_probe

T = TypeVar("T")
ATTENTION_OF = {"flash_attention_2": Attention.FLASH, "eager": Attention.EAGER}
"""By transformers' name; every other one computes with torch's scaled dot product."""
KEPT_WEIGHT_FILES = 2
"""Weights files in /dev/shm: an engine may still read the newest while the next is written."""


@dataclass(frozen=True, slots=True)
class RankInfo:
    """What a rank reports when it is built."""

    process: PodProcess
    precision: str
    attention: str
    parameters: int
    """Of the whole model, not of this rank's shard."""
    peak_tflops: float
    """Of this rank's device; 0: not known."""
    memory_kills: int
    """How many processes of its pod the kernel had ended for memory by then."""


class RankActor:
    """One trainer rank in a process of its own."""

    def __init__(self, rank: int, world_size: int, log_folder: str) -> None:
        register(Path(log_folder), f"rank-{rank}")
        self._rank, self._world_size = rank, world_size
        self._policy: Policy | None = None
        self._written: list[Path] = []

    def address(self) -> tuple[str, int]:
        """Return this pod's address and a free port, for the process group."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return ray.util.get_node_ip_address(), int(probe.getsockname()[1])

    def measure_precision(self, model_path: str) -> MeasuredPrecision:
        """Return what this machine's processors do in either precision."""
        return measure_precision(model_path)

    def build(self, address: tuple[str, int], arguments: dict[str, Any]) -> RankInfo:
        """Join the process group and load the model."""
        host, port = address
        init_process_group(self._rank, self._world_size, host, port, arguments["device"])
        self._policy = Policy(rank=self._rank, world_size=self._world_size, **arguments)
        attention = ATTENTION_OF.get(self._policy.attention, Attention.SDPA)
        return RankInfo(
            process=this_process(),
            precision=str(arguments["precision"]),
            attention=str(attention),
            parameters=self._policy.num_parameters,
            peak_tflops=peak_tflops(self._policy.device_name),
            memory_kills=memory_kills(),
        )

    def step(self, groups: Sequence[Group], step: int) -> StepMetrics:
        """Train one step; `groups` is the whole batch, of which this rank takes its share."""
        return self._built().step(groups, step=step)

    def logprobs(self, groups: Sequence[Group]) -> list[list[float]]:
        """Return the log-probabilities of the sampled tokens, one list per completion."""
        return self._built().logprobs(groups)

    def write_weights(self, version: int) -> str:
        """Write all weights to a file in this pod's memory (rank 0; the others take part)."""
        weights = self._built().export_weights()
        if self._rank != 0:
            for _ in weights:  # each is gathered from all ranks, and only rank 0 keeps it
                pass
            return ""
        from safetensors.torch import save_file

        path = Path(f"/dev/shm/raggrpo-weights-{os.getpid()}-{version}.safetensors")
        while len(self._written) >= KEPT_WEIGHT_FILES:
            self._written.pop(0).unlink()
        save_file(dict(weights), path)
        self._written.append(path)
        return str(path)

    def read_weights(self, path: str) -> Any:
        """Return a weights file as bytes that Ray shares without copying."""
        import numpy as np

        return np.fromfile(path, dtype=np.uint8)

    def save(self, folder: str) -> None:
        """Write this rank's shards of model and optimiser."""
        from torch.distributed.checkpoint.api import CheckpointException
        from torch.distributed.checkpoint.state_dict_saver import save

        try:
            save(self._built().state_dict(), checkpoint_id=folder)
        except CheckpointException as failed:
            # It wraps each rank's own error: a full disk must be seen as one.
            errors = [error for error, _ in failed.failures.values()]
            system = next((e for e in errors if isinstance(e, OSError)), None)
            raise system or RuntimeError(str(failed)) from failed

    def load(self, folder: str) -> None:
        """Load model and optimiser, whatever number of ranks wrote them."""
        from torch.distributed.checkpoint.state_dict_loader import load

        policy = self._built()
        state = policy.state_dict()
        load(state, checkpoint_id=folder)
        policy.load_state_dict(state)

    def export(self, folder: str) -> None:
        """Write a plain Hugging Face folder (rank 0; the others take part)."""
        self._built().export_hf(Path(folder))

    def close(self) -> None:
        """Remove the weights files."""
        for path in self._written:
            path.unlink(missing_ok=True)

    def _built(self) -> Policy:
        if self._policy is None:
            raise RuntimeError("build() was not called")
        return self._policy


class Ranks:
    """All ranks of an attempt. The loss of one ends the attempt: its peers hang in collectives."""

    def __init__(self, actors: list[Any]) -> None:
        self.actors = actors
        self.infos: list[RankInfo] = []

    @classmethod
    def create(
        cls, config: TrainerConfig, placement: Placement, epoch: int, log_folder: Path
    ) -> "Ranks":
        """Start the ranks' processes; `build` makes them trainers."""
        world = config.world
        return cls(
            [
                ray.remote(RankActor)
                .options(
                    name=rank_name(epoch, rank),
                    num_cpus=world.cpus_per_rank,
                    num_gpus=world.gpus_per_rank,
                    scheduling_strategy=placement.for_rank(rank),
                    runtime_env={"env_vars": _environment(config)},
                )
                .remote(rank, world.num_ranks, str(log_folder))
                for rank in range(world.num_ranks)
            ]
        )

    async def measure_precision(self, model_path: str) -> MeasuredPrecision:
        """Return what the ranks' processors do in either precision."""
        found: list[MeasuredPrecision] = await self._all(
            lambda a: a.measure_precision.remote(model_path), self.actors[:1]
        )
        return found[0]

    async def build(self, arguments: dict[str, Any]) -> None:
        """Join the ranks into one group and load the model. `arguments` are Policy's."""
        [address] = await self._all(lambda a: a.address.remote(), self.actors[:1])
        self.infos = await self._all(lambda a: a.build.remote(address, arguments))

    def flops_probe(self, every_steps: int) -> Probe:
        """Return the measurement of what share of their devices' arithmetic the ranks use."""
        peaks = [info.peak_tflops for info in self.infos]
        return flops_probe(every_steps, self.infos[0].parameters, peaks)

    async def step(self, groups: Sequence[Group], step: int) -> list[StepMetrics]:
        """Train one step; every rank takes its share of the batch by itself."""
        batch = ray.put(tuple(groups))
        metrics: list[StepMetrics] = await self._all(lambda a: a.step.remote(batch, step))
        return metrics

    async def logprobs(self, groups: Sequence[Group]) -> list[list[float]]:
        """Return log-probabilities of the sampled tokens; every rank computes all of them."""
        found: list[list[list[float]]] = await self._all(lambda a: a.logprobs.remote(groups))
        return found[0]

    async def write_weights(self, version: int) -> tuple[str, str]:
        """Return path and node of a file with the current weights."""
        paths = await self._all(lambda a: a.write_weights.remote(version))
        return paths[0], self.infos[0].process.node

    def weights_reader(self, path: str) -> Callable[[], Any]:
        """Return a function that yields the file's bytes as a Ray reference."""
        return lambda: self.actors[0].read_weights.remote(path)

    def save(self, folder: Path) -> None:
        """Write all shards; blocks (for use in a thread)."""
        self._wait([a.save.remote(str(folder)) for a in self.actors])

    def export(self, folder: Path) -> None:
        """Write a Hugging Face folder; blocks (for use in a thread)."""
        self._wait([a.export.remote(str(folder)) for a in self.actors])

    async def load(self, folder: Path) -> None:
        """Load a checkpoint into all ranks."""
        await self._all(lambda a: a.load.remote(str(folder)))

    async def close(self) -> None:
        """Remove what the ranks left in shared memory."""
        await self._all(lambda a: a.close.remote(), self.actors[:1])

    async def _all(self, call: Callable[[Any], Any], actors: Iterable[Any] | None = None) -> Any:
        return await self._gather([call(a) for a in (actors or self.actors)])

    async def _gather(self, references: Sequence[Any]) -> Any:
        """Await all results; the first failure counts, since the peers may hang for ever."""
        tasks = [asyncio.ensure_future(_value(reference)) for reference in references]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        failed = next((t for t in done if t.exception() is not None), None)
        if failed is None:
            return [task.result() for task in tasks]
        for task in pending:
            task.cancel()
        raise await asyncio.to_thread(self._lost, failed.exception())

    def _wait(self, references: list[Any]) -> None:
        waiting = list(references)
        while waiting:
            done, waiting = ray.wait(waiting)
            try:
                ray.get(done)
            except (RayActorError, RayTaskError) as error:
                raise self._lost(error) from error

    def _lost(self, error: BaseException | None) -> BaseException:
        """Return the trainer's own error for a rank that failed; blocks."""
        if isinstance(error, RayTaskError):
            return _of_task(error)
        if isinstance(error, RayActorError):
            kills = {info.process.node: info.memory_kills for info in self.infos}
            if killed_for_memory(error, kills):
                return TrainerError(
                    ExitCode.HOST_OUT_OF_MEMORY,
                    "a trainer rank used up its pod's memory and was ended: raise resources.memory",
                )
            return TrainerError(ExitCode.TRAINER_RANK_LOST, f"a trainer rank died: {error}")
        return error or RuntimeError("a rank failed without an error")


def rank_name(epoch: int, rank: int) -> str:
    """Return the actor name of a rank; the epoch tells old ones from new ones."""
    return f"rank-{epoch}-{rank}"


async def end_older_ranks(epoch: int) -> None:
    """Kill the ranks of earlier epochs and wait until they are gone."""
    names = [n for n in ray.util.list_named_actors() if n.startswith("rank-")]
    old = [n for n in names if int(n.split("-")[1]) < epoch]
    for name in old:
        try:
            actor = ray.get_actor(name)
        except ValueError:
            continue  # died by itself meanwhile
        await end_actor(actor, name)


async def _value(reference: Any) -> Any:
    return await reference


def _of_task(error: RayTaskError) -> BaseException:
    """Return the trainer's own error for a call that a rank could not do."""
    cause = error.as_instanceof_cause()
    if "out of memory" in str(error).lower():
        return TrainerError(ExitCode.CUDA_OUT_OF_MEMORY, str(error)[-600:])
    if isinstance(cause, OSError | TrainerError):
        return cause
    return TrainerError(ExitCode.PROGRAM_ERROR, str(error)[-900:])


def _environment(config: TrainerConfig) -> dict[str, str]:
    threads = str(config.world.threads_per_rank)
    return {"OMP_NUM_THREADS": threads, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
