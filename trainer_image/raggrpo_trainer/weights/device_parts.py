"""A rank's side of weights that stay in GPU memory: parts of the model, one after the other.

Every rank gathers the same tensors, so each GPU holds a part whole, and no more than one part.
Engines on the same GPUs map it (CUDA IPC); engines elsewhere get it from rank 0 (NCCL). A part's
fields are those of vLLM's weight transfer, whose engines read it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

PART_BYTES = 2**30
"""Size of a part, unless a single tensor is larger."""


@dataclass(frozen=True, slots=True)
class Part:
    """What the engines are told of one part."""

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]
    tensor_sizes: list[int]
    """In bytes, as the tensors lie in the buffer."""
    handles: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """Keyed by a GPU's UUID: how a process on it maps the buffer."""


class PartSender:
    """Packs the tensors of each part into one buffer."""

    def __init__(self, weights: Iterable[tuple[str, Tensor]], *, size: int = PART_BYTES) -> None:
        self._parts = _parts(weights, size)
        self.buffer = torch.empty(0, dtype=torch.uint8)

    def next(self, *, maps: bool) -> Part | None:
        """Pack the next part (collective), or return None after the last; `maps`: for CUDA IPC.

        The part before must have been read: its buffer is used again.
        """
        tensors = next(self._parts, None)
        if tensors is None:
            self.buffer = torch.empty(0, dtype=torch.uint8)
            return None
        flat = [tensor.contiguous().view(-1).view(torch.uint8) for _, tensor in tensors]
        self.buffer = torch.cat(flat)
        handles = {}
        if maps:
            device = self.buffer.get_device()
            torch.cuda.current_stream(device).synchronize()
            uuid = str(torch.cuda.get_device_properties(device).uuid)
            handles = {uuid: reduce_tensor(self.buffer)[1]}  # type: ignore[no-untyped-call]
        return Part(
            [name for name, _ in tensors],
            [str(tensor.dtype).removeprefix("torch.") for _, tensor in tensors],
            [list(tensor.shape) for _, tensor in tensors],
            [len(each) for each in flat],
            handles,
        )


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
