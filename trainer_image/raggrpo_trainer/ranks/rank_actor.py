"""One FSDP2 rank as a Ray actor: its calls and the files it writes. The arithmetic is in `policy`.

A rank outlives its driver and retains its state, from which the next driver continues. Every call
that uses the model carries the driver's fencing epoch; a rank rejects calls whose epoch is older
than the newest epoch that it has served.

The driver imports this module, too. Torch takes seconds to import, so it is imported only in the
actor's process, while the driver continues.
"""

import importlib
import logging
import os
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
from raggrpo_trainer.exchange.rendezvous import (
    Rendezvous,
    address_rendezvous,
    file_rendezvous,
    free_port,
)
from raggrpo_trainer.exchange.step_metrics import StepMetrics
from raggrpo_trainer.host.device_peaks import peak_tflops
from raggrpo_trainer.host.large_import import large_import
from raggrpo_trainer.host.logs import configure_logs
from raggrpo_trainer.host.measured_device import MeasuredDevice, measure_device
from raggrpo_trainer.host.oom_kills import oom_kills
from raggrpo_trainer.host.pod_processes import PodProcess, node_id, this_process
from raggrpo_trainer.host.ray_logs import save_ray_logs
from raggrpo_trainer.host.stacks import register_stack_dumps
from raggrpo_trainer.weights.backend import WeightTransferBackend
from raggrpo_trainer.weights.shared_memory import SharedMemorySender

from .retained_state import RetainedState, TrainingPosition
from .waiting_marker import waiting_marker

if TYPE_CHECKING:
    from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator

    from raggrpo_trainer.policy.policy import Policy
    from raggrpo_trainer.weights.rank_side import ChunkSender

log = logging.getLogger(__name__)

ATTENTION_OF = {"flash_attention_2": Attention.FLASH, "eager": Attention.EAGER}
"""`Attention` by `attn_implementation`; all other names use torch's SDPA."""
REQUIRED_STATE = frozenset({"model", "optimizer"})
"""Keys that the state of every checkpoint contains."""


@dataclass(frozen=True, slots=True)
class RankInfo:
    """Properties of a rank, reported when the rank is built or adopted."""

    process: PodProcess
    precision: str
    attention: str
    parameters: int
    """Number of parameters of the whole model, not of this rank's shard."""
    trained_parameters: int
    """Number of those parameters that training changes."""
    peak_tflops: float
    """Peak TFLOP/s of this rank's device; 0 if unknown."""
    oom_kills: int
    """Number of processes in the rank's pod that the kernel has OOM-killed so far."""


class RankActor:
    """One trainer rank in its own process."""

    def __init__(
        self, rank: int, world_size: int, epoch: int, log_folder: str, level: LogLevel
    ) -> None:
        register_stack_dumps(Path(log_folder), f"rank-{rank}")
        save_ray_logs(Path(log_folder))
        configure_logs(level)
        with large_import():
            importlib.import_module("raggrpo_trainer.policy.policy")  # `build` needs it
        self._rank = rank
        self._world_size = world_size
        self._epoch = epoch
        self._waiting_marker = waiting_marker(os.getpid())
        self._waiting_marker.unlink(missing_ok=True)  # left by an earlier process with this PID
        self._precision = ""
        self._policy: Policy | None = None
        self._retained: RetainedState | None = None
        self._completed: RetainedState | None = None
        self._weights = SharedMemorySender(ray.get_runtime_context().namespace, rank)
        self._chunks: ChunkSender | None = None
        self._nccl_group: PyNcclCommunicator | None = None

    def address(self) -> tuple[str, int]:
        """Return this pod's address and a free port, for the NCCL group with the engines."""
        return ray.util.get_node_ip_address(), free_port()

    def measure_precision(self, model_path: str) -> MeasuredPrecision:
        """Measure the speed of FP32 and BF16 on this machine's CPU."""
        from raggrpo_trainer.policy.precision_probe import measure_precision

        return measure_precision(model_path)

    def measure_device(self, kind: str) -> MeasuredDevice:
        """Measure this rank's device (kind: cpu or cuda) before the job allocates its memory."""
        return measure_device(kind)

    def node(self) -> str:
        """Return the ID of the Ray node on which this rank runs."""
        return node_id()

    def rendezvous(self, *, on_one_node: bool) -> Rendezvous:
        """Return where the ranks meet; `on_one_node` is whether all ranks run on this node."""
        address = ray.util.get_node_ip_address()
        return file_rendezvous() if on_one_node else address_rendezvous(address)

    def build(self, rendezvous: Rendezvous, config: PolicyConfig) -> RankInfo:
        """Join the process group and load the model (collective)."""
        from raggrpo_trainer.policy.policy import Policy
        from raggrpo_trainer.policy.process_group import init_process_group

        init_process_group(self._rank, self._world_size, rendezvous, config.device)
        self._policy = Policy(config, rank=self._rank, world_size=self._world_size)
        self._precision = str(config.training.precision)
        return self._info(self._policy)

    def adopt(
        self, epoch: int, log_folder: str, level: LogLevel
    ) -> tuple[RankInfo, RetainedState] | None:
        """Serve this epoch from now on; return the retained state, or None if there is none.

        Raises TrainerError SUPERSEDED if the rank has served a newer epoch.
        """
        self._check(epoch)
        self._epoch = epoch
        self._waiting_marker.unlink(missing_ok=True)
        register_stack_dumps(Path(log_folder), f"rank-{self._rank}")
        save_ray_logs(Path(log_folder))
        configure_logs(level)
        if self._policy is None or self._retained is None:
            return None
        self.free_chunks(epoch)  # left by a driver that exited during a weight transfer
        return self._info(self._policy), self._retained

    def wait_for_driver(self, epoch: int) -> None:
        """Mark this rank as waiting for the next driver; the current driver is about to exit."""
        self._check(epoch)
        self._waiting_marker.touch()

    def checksum(self, epoch: int) -> int:
        """Return the checksum of the current state (collective)."""
        return self._built(epoch).checksum()

    def retain(self, epoch: int, position: TrainingPosition) -> None:
        """Retain the current state and its `position` for the next driver (collective)."""
        self._retained = RetainedState(position, self.checksum(epoch))
        self._completed = self._retained

    def completed(self, epoch: int) -> RetainedState | None:
        """Return the state after the last completed step (collective).

        Unlike the retained state, it exists after a failed step, but only if that step has changed
        neither parameters nor optimizer. Gradients may have remained, so that this state can be
        saved but not trained. Returns None if there is no such state.
        """
        checksum = self.checksum(epoch)
        is_unchanged = self._completed is not None and self._completed.checksum == checksum
        return self._completed if is_unchanged else None

    def step(self, epoch: int, groups: Sequence[Group], after: TrainingPosition) -> StepMetrics:
        """Train one step (collective).

        `groups` is the whole batch, from which this rank takes its share; `after` is the position
        after the step.
        """
        policy = self._built(epoch)
        self._retained = None  # a failed step may have changed some parameters
        started = time.monotonic()
        metrics = policy.step(groups, step=after.step)
        log.debug(
            "rank %d trained step %d (all ranks: %d tokens, %d positions)",
            self._rank,
            after.step,
            metrics.num_trained_tokens,
            metrics.num_positions,
        )
        if not metrics.non_finite:
            seconds = time.monotonic() - started
            self._retained = RetainedState(after, policy.checksum(), metrics, seconds)
            self._completed = self._retained
        return metrics

    def logprobs(self, epoch: int, groups: Sequence[Group]) -> list[list[float]]:
        """Return the logprobs of the sampled tokens, one list per completion (collective)."""
        return self._built(epoch).logprobs(groups)

    def plain_logprobs(self, epoch: int, groups: Sequence[Group]) -> list[list[float]]:
        """Return the logprobs as computed by the plain Hugging Face model (collective)."""
        return self._built(epoch).plain_logprobs(groups)

    def write_weights(self, epoch: int, version: int) -> str:
        """Write all weights to shared memory (collective); return the file's path on rank 0.

        Also frees the device's cached memory for colocated engines.
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
        """Gather the next tensor chunk (collective); return its description, or None at the end."""
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
        """Join the NCCL group with the engines' workers, as rank 0 of the group."""
        from raggrpo_trainer.weights.rank_side import join_nccl_group

        if self._nccl_group is not None:
            self._nccl_group.destroy()
        self._nccl_group = join_nccl_group(*address, world_size)

    def broadcast_chunk(self, epoch: int) -> None:
        """Broadcast the gathered chunk to the engines."""
        from raggrpo_trainer.weights.rank_side import NcclChunkSender

        self._check(epoch)
        if not isinstance(self._chunks, NcclChunkSender) or self._nccl_group is None:
            raise RuntimeError(
                "broadcast_chunk() requires next_chunk() and join_nccl_group() first"
            )
        self._chunks.broadcast(self._nccl_group)

    def save(self, epoch: int, folder: str) -> dict[str, str]:
        """Write this rank's shards of model and optimizer (collective).

        Returns the SHA-256 of the files by name. Raises OSError if the folder cannot be written.
        """
        from torch.distributed.checkpoint.api import CheckpointException

        from raggrpo_trainer.checkpoint.hashing_save import save_hashed

        try:
            return save_hashed(self._built(epoch).state_dict(), Path(folder))
        except CheckpointException as failed:
            # This error wraps the ranks' errors. Raise the OSError: its errno shows a full disk.
            errors = [error for error, _ in failed.failures.values()]
            os_error = next((error for error in errors if isinstance(error, OSError)), None)
            raise os_error or RuntimeError(str(failed)) from failed

    def load(self, epoch: int, folder: str, *, with_optimizer: bool = True) -> None:
        """Load model and optimizer, saved by any number of ranks (collective)."""
        policy = self._built(epoch)
        self._retained = self._completed = None
        load_checkpoint(policy, folder, with_optimizer=with_optimizer)

    def export(self, epoch: int, folder: str) -> None:
        """Write a Hugging Face folder (collective; rank 0 writes)."""
        self._built(epoch).export_hf(Path(folder))

    def close(self) -> None:
        """Delete this rank's weight files in shared memory."""
        self._weights.close()

    def _info(self, policy: "Policy") -> RankInfo:
        return RankInfo(
            process=this_process(),
            precision=self._precision,
            attention=str(ATTENTION_OF.get(policy.attention, Attention.SDPA)),
            parameters=policy.num_parameters,
            trained_parameters=policy.num_trained_parameters,
            peak_tflops=peak_tflops(policy.device_name),
            oom_kills=oom_kills(),
        )

    def _built(self, epoch: int) -> "Policy":
        self._check(epoch)
        if self._policy is None:
            raise RuntimeError("build() must be called first")
        return self._policy

    def _check(self, epoch: int) -> None:
        if epoch < self._epoch:
            message = (
                f"the ranks of epoch {epoch} were adopted by the driver of epoch {self._epoch}"
            )
            raise TrainerError(ExitCode.SUPERSEDED, message)


def load_checkpoint(policy: "Policy", folder: str, *, with_optimizer: bool = True) -> None:
    """Load a policy's state from a folder, or only its model (collective)."""
    from raggrpo_trainer.checkpoint.safe_load import SafeReader, load_into

    reader = SafeReader(Path(folder))
    # A checkpoint of another precision has no loss scale; the scale then keeps its default.
    keys = reader.saved_keys() | REQUIRED_STATE if with_optimizer else {"model"}
    state = {key: value for key, value in policy.state_dict().items() if key in keys}
    load_into(state, reader)
    policy.load_state_dict(state)
