"""A rank's side of weights that stay in GPU memory: parts of the model, one after the other.

Every rank gathers the same tensors, so each GPU holds a part whole, and no more than one part.
Engines on the same GPUs map it (CUDA IPC); engines elsewhere get it from rank 0 (NCCL). A part's
fields are those of vLLM's weight transfer, whose engines read it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from raggrpo_api.memory import WEIGHT_PART_BYTES

if TYPE_CHECKING:
    from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator


@dataclass(frozen=True, slots=True)
class Part:
    """What the engines are told of one part."""

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]
    tensor_sizes: list[int] = field(default_factory=list)
    """In bytes, as the tensors lie in the buffer; only for engines that map it."""
    ipc_handles: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """Keyed by a GPU's UUID: how a process on it maps the buffer."""


class PartSender:
    """Hands out the weights' parts; each must have been read before the next is asked for."""

    def __init__(
        self, weights: Iterable[tuple[str, Tensor]], *, size: int = WEIGHT_PART_BYTES
    ) -> None:
        self._parts = _parts(weights, size)
        self._tensors: list[Tensor] = []
        self._buffer: Tensor | None = None

    def next(self, *, maps: bool) -> Part | None:
        """Return the next part (collective), None after the last; `maps`: for CUDA IPC."""
        named = next(self._parts, [])
        self._tensors, self._buffer = [tensor.contiguous() for _, tensor in named], None
        if maps:
            torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]  # the part before is mapped no more
        if not named:
            return None
        part = Part(
            [name for name, _ in named],
            [str(tensor.dtype).removeprefix("torch.") for _, tensor in named],
            [list(tensor.shape) for _, tensor in named],
        )
        return self._mapped(part) if maps else part

    def broadcast(self, group: "PyNcclCommunicator") -> None:
        """Send the part's tensors to every other member of the group."""
        for tensor in self._tensors:
            group.broadcast(tensor, src=0)
            if tensor.is_cuda:
                torch.cuda.current_stream(tensor.device).synchronize()

    def _mapped(self, part: Part) -> Part:
        """Pack the tensors into one buffer; that is what is mapped."""
        flat = [tensor.view(-1).view(torch.uint8) for tensor in self._tensors]
        self._buffer = torch.cat(flat)
        device = self._buffer.get_device()
        torch.cuda.current_stream(device).synchronize()
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        handles = {uuid: reduce_tensor(self._buffer)[1]}  # type: ignore[no-untyped-call]
        return replace(part, tensor_sizes=[len(each) for each in flat], ipc_handles=handles)


def join_engines(address: str, port: int, world_size: int) -> "PyNcclCommunicator":
    """Join vLLM's NCCL group of rank 0 and the engines' workers, as its member 0 (blocks)."""
    from vllm.distributed.weight_transfer.nccl_common import trainer_init

    return trainer_init({"master_address": address, "master_port": port, "world_size": world_size})


def _parts(weights: Iterable[tuple[str, Tensor]], size: int) -> Iterator[list[tuple[str, Tensor]]]:
    part: list[tuple[str, Tensor]] = []
    held = 0
    for name, tensor in weights:
        if part and held + tensor.nbytes > size:
            yield part
            part, held = [], 0
        part.append((name, tensor))
        held += tensor.nbytes
    if part:
        yield part
