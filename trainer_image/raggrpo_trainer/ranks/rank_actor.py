"""One FSDP2 rank as a Ray actor: its calls and the files it writes. The arithmetic is in `policy`.

A rank outlives its driver, and the next one goes on with what it holds. Every call that needs the
model carries the driver's fencing epoch; a rank refuses epochs older than the newest it has seen.

The driver imports this module too, so torch, which takes seconds to import, is imported only in
the actor's process, while the driver goes on.
"""

import importlib
import logging
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from raggrpo_api.spec.model import Attention
from raggrpo_api.spec.monitoring import LogLevel
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.exchange.groups import Group
from raggrpo_trainer.exchange.policy_config import PolicyConfig
from raggrpo_trainer.exchange.precision import MeasuredPrecision
from raggrpo_trainer.exchange.step_metrics import StepMetrics
from raggrpo_trainer.host.device_peaks import peak_tflops
from raggrpo_trainer.host.large_import import large_import
from raggrpo_trainer.host.logs import configure_logs
from raggrpo_trainer.host.measured_device import MeasuredDevice, measured_device
from raggrpo_trainer.host.memory_kills import memory_kills
from raggrpo_trainer.host.pod_processes import PodProcess, this_process
from raggrpo_trainer.host.ray_logs import keep_ray_logs
from raggrpo_trainer.host.stacks import register
from raggrpo_trainer.weights.backend import WeightTransferBackend
from raggrpo_trainer.weights.shared_memory import SharedMemorySender

from .held import Held, Position
from .left_behind import mark

if TYPE_CHECKING:
    from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator

    from raggrpo_trainer.policy.policy import Policy
    from raggrpo_trainer.weights.rank_side import ChunkSender

log = logging.getLogger(__name__)

ATTENTION_OF = {"flash_attention_2": Attention.FLASH, "eager": Attention.EAGER}
"""Keyed by transformers' name; all others use torch's scaled dot product attention."""
NEEDED = frozenset({"model", "optimizer"})
"""Parts of every checkpoint."""


@dataclass(frozen=True, slots=True)
class RankInfo:
    """What a rank reports when it is built or adopted."""

    process: PodProcess
    precision: str
    attention: str
    parameters: int
    """Of the whole model, not of this rank's shard."""
    peak_tflops: float
    """Of this rank's device; 0 if unknown."""
    memory_kills: int
    """Processes in its pod that the kernel had OOM-killed by then."""


class RankActor:
    """One trainer rank in a process of its own."""

    def __init__(
        self, rank: int, world_size: int, epoch: int, log_folder: str, level: LogLevel
    ) -> None:
        register(Path(log_folder), f"rank-{rank}")
        keep_ray_logs(Path(log_folder))
        configure_logs(level)
        with large_import():
            importlib.import_module("raggrpo_trainer.policy.policy")  # start now, `build` needs it
        self._rank, self._world_size, self._epoch = rank, world_size, epoch
        self._mark = mark(os.getpid())
        self._mark.unlink(missing_ok=True)  # of a process that had this number before
        self._precision = ""
        self._policy: Policy | None = None
        self._held: Held | None = None
        self._weights = SharedMemorySender(ray.get_runtime_context().namespace, rank)
        self._chunks: ChunkSender | None = None
        self._nccl_group: PyNcclCommunicator | None = None

    def address(self) -> tuple[str, int]:
        """Return this pod's address and a free port, for the process group."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return ray.util.get_node_ip_address(), int(probe.getsockname()[1])

    def measure_precision(self, model_path: str) -> MeasuredPrecision:
        """Measure both precisions on this machine's CPU."""
        from raggrpo_trainer.policy.precision_probe import measure_precision

        return measure_precision(model_path)

    def measure_device(self, kind: str) -> MeasuredDevice:
        """Return what this rank's device has before anything of the job is on it."""
        return measured_device(kind)

    def build(self, address: tuple[str, int], config: PolicyConfig) -> RankInfo:
        """Join the process group and load the model."""
        from raggrpo_trainer.policy.policy import Policy
        from raggrpo_trainer.policy.process_group import init_process_group

        host, port = address
        init_process_group(self._rank, self._world_size, host, port, config.device)
        self._policy = Policy(config, rank=self._rank, world_size=self._world_size)
        self._precision = str(config.training.precision)
        return self._info(self._policy)

    def adopt(self, epoch: int, log_folder: str, level: LogLevel) -> tuple[RankInfo, Held] | None:
        """Serve this epoch from now on, and tell what is held; None: nothing to go on from.

        Raises TrainerError SUPERSEDED for an epoch older than the newest.
        """
        self._check(epoch)
        self._epoch = epoch
        self._mark.unlink(missing_ok=True)
        register(Path(log_folder), f"rank-{self._rank}")
        keep_ray_logs(Path(log_folder))
        configure_logs(level)
        if self._policy is None or self._held is None:
            return None
        self.free_chunks(epoch)  # of a driver that exited during a weight transfer
        return self._info(self._policy), self._held

    def leave(self, epoch: int) -> None:
        """Wait for the next driver; this one ends."""
        self._check(epoch)
        self._mark.touch()

    def checksum(self, epoch: int) -> int:
        """Return the checksum of the state as it is now (collective)."""
        return self._built(epoch).checksum()

    def hold(self, epoch: int, position: Position) -> None:
        """Hold the state for the next driver as that of this position (collective)."""
        self._held = Held(position, self.checksum(epoch))

    def step(self, epoch: int, groups: Sequence[Group], after: Position) -> StepMetrics:
        """Train one step; `groups` is the whole batch, from which this rank takes its share."""
        policy = self._built(epoch)
        self._held, began = None, time.monotonic()  # a step that fails may have changed some of it
        metrics = policy.step(groups, step=after.step)
        log.debug(
            "rank %d trained step %d: %d tokens, %d positions on all ranks",
            self._rank,
            after.step,
            metrics.num_trained_tokens,
            metrics.num_positions,
        )
        if not metrics.non_finite:
            seconds = time.monotonic() - began
            self._held = Held(after, policy.checksum(), metrics, seconds)
        return metrics

    def logprobs(self, epoch: int, groups: Sequence[Group]) -> list[list[float]]:
        """Return the log-probabilities of the sampled tokens, one list per completion."""
        return self._built(epoch).logprobs(groups)

    def plain_logprobs(self, epoch: int, groups: Sequence[Group]) -> list[list[float]]:
        """Return the same as the plain Hugging Face model computes them."""
        return self._built(epoch).plain_logprobs(groups)

    def write_weights(self, epoch: int, version: int) -> str:
        """Write all weights to shared memory (collective); return the file's path on rank 0.

        Afterwards the device's cached memory is free for colocated engines.
        """
        policy = self._built(epoch)
        handle = self._weights.send(version, policy.export_weights())
        policy.release_cached_memory()
        return handle

    def weights_file(self, handle: str) -> Any:
        """Return the content of a weights file as bytes that Ray shares without copying."""
        return self._weights.data(handle)

    def next_chunk(
        self, epoch: int, *, first: bool, backend: WeightTransferBackend
    ) -> dict[str, Any] | None:
        """Gather the next tensor chunk (collective); return its description or None."""
        from raggrpo_trainer.weights.rank_side import chunk_sender

        policy = self._built(epoch)
        if self._chunks is None or first:
            self._chunks = chunk_sender(backend, policy.export_weights(on_device=True))
        return self._chunks.next()

    def free_chunks(self, epoch: int) -> None:
        """Free gathered tensors, the IPC buffer and cached memory for colocated engines."""
        policy = self._built(epoch)
        self._chunks = None
        policy.release_cached_memory()

    def join_nccl_group(self, address: tuple[str, int], world_size: int) -> None:
        """Join the NCCL group of the engines' workers as its rank 0."""
        from raggrpo_trainer.weights.rank_side import join_nccl_group

        if self._nccl_group is not None:
            self._nccl_group.destroy()
        self._nccl_group = join_nccl_group(*address, world_size)

    def broadcast_chunk(self, epoch: int) -> None:
        """Broadcast the gathered chunk to the engines."""
        from raggrpo_trainer.weights.rank_side import NcclChunkSender

        self._check(epoch)
        if not isinstance(self._chunks, NcclChunkSender) or self._nccl_group is None:
            raise RuntimeError("next_chunk() and join_nccl_group() come first")
        self._chunks.broadcast(self._nccl_group)

    def save(self, epoch: int, folder: str) -> None:
        """Write this rank's shards of model and optimiser."""
        from torch.distributed.checkpoint.api import CheckpointException
        from torch.distributed.checkpoint.state_dict_saver import save

        try:
            save(self._built(epoch).state_dict(), checkpoint_id=folder)
        except CheckpointException as failed:
            # It wraps each rank's own error; a full disk must be recognised as one.
            errors = [error for error, _ in failed.failures.values()]
            system = next((e for e in errors if isinstance(e, OSError)), None)
            raise system or RuntimeError(str(failed)) from failed

    def load(self, epoch: int, folder: str) -> None:
        """Load model and optimiser, written by any number of ranks."""
        policy = self._built(epoch)
        self._held = None
        load_checkpoint(policy, folder)

    def export(self, epoch: int, folder: str) -> None:
        """Write a plain Hugging Face folder (collective; rank 0 writes)."""
        self._built(epoch).export_hf(Path(folder))

    def close(self) -> None:
        """Free the weights sent so far."""
        self._weights.close()

    def _info(self, policy: "Policy") -> RankInfo:
        return RankInfo(
            process=this_process(),
            precision=self._precision,
            attention=str(ATTENTION_OF.get(policy.attention, Attention.SDPA)),
            parameters=policy.num_parameters,
            peak_tflops=peak_tflops(policy.device_name),
            memory_kills=memory_kills(),
        )

    def _built(self, epoch: int) -> "Policy":
        self._check(epoch)
        if self._policy is None:
            raise RuntimeError("build() was not called")
        return self._policy

    def _check(self, epoch: int) -> None:
        if epoch < self._epoch:
            message = f"the ranks of epoch {epoch} have been taken over by epoch {self._epoch}"
            raise TrainerError(ExitCode.SUPERSEDED, message)


def load_checkpoint(policy: "Policy", folder: str) -> None:
    """Load what the folder holds of a policy's state (collective)."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    saved = FileSystemReader(folder).read_metadata().state_dict_metadata
    parts = {key.split(".")[0] for key in saved}
    # A checkpoint of another precision has no loss scale: then it begins anew.
    state = {key: part for key, part in policy.state_dict().items() if key in parts | NEEDED}
    load(state, checkpoint_id=folder)
    policy.load_state_dict(state)
