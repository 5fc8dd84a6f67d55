"""One FSDP2 rank as a Ray actor: the calls, and the files it writes. Arithmetic is in `policy`.

The driver imports this module for the class's name alone. Torch, which takes seconds to import, is
imported in the actor's own process, where it begins while the driver goes on.
"""

import importlib
import os
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from raggrpo_api.memory import KEPT_WEIGHT_FILES
from raggrpo_api.spec.model import Attention
from raggrpo_trainer.exchange.groups import Group
from raggrpo_trainer.exchange.precision import MeasuredPrecision
from raggrpo_trainer.exchange.step_metrics import StepMetrics
from raggrpo_trainer.host.device_peaks import peak_tflops
from raggrpo_trainer.host.host_memory import host_memory_bytes
from raggrpo_trainer.host.large_import import large_import
from raggrpo_trainer.host.memory_kills import memory_kills
from raggrpo_trainer.host.pod_processes import PodProcess, this_process
from raggrpo_trainer.host.stacks import register

if TYPE_CHECKING:
    from raggrpo_trainer.policy.policy import Policy

ATTENTION_OF = {"flash_attention_2": Attention.FLASH, "eager": Attention.EAGER}
"""By transformers' name; every other one computes with torch's scaled dot product."""


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
        with large_import():
            importlib.import_module("raggrpo_trainer.policy.policy")  # begins now; `build` finds it
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
        from raggrpo_trainer.policy.precision_probe import measure_precision

        return measure_precision(model_path)

    def build(self, address: tuple[str, int], arguments: dict[str, Any]) -> RankInfo:
        """Join the process group and load the model."""
        from raggrpo_trainer.policy.policy import Policy, init_process_group

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
        metrics = self._built().step(groups, step=step)
        return replace(metrics, host_memory_bytes=host_memory_bytes())

    def logprobs(self, groups: Sequence[Group]) -> list[list[float]]:
        """Return the log-probabilities of the sampled tokens, one list per completion."""
        return self._built().logprobs(groups)

    def write_weights(self, version: int) -> str:
        """Write all weights to a file in this pod's memory (rank 0; the others take part).

        The ranks are done with their devices then, which the engines take next.
        """
        policy = self._built()
        path = self._keep_weights(policy.export_weights(), version)
        policy.release_cached_memory()
        return path

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

    def _keep_weights(self, weights: Iterable[tuple[str, Any]], version: int) -> str:
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

    def _built(self) -> "Policy":
        if self._policy is None:
            raise RuntimeError("build() was not called")
        return self._policy
