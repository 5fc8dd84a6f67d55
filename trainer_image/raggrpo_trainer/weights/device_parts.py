"""A rank's side of weights that stay in GPU memory: parts of the model, one after the other.

Every rank gathers the same tensors, so each GPU holds a part whole, and the next tensor. Engines on
the same GPUs map a buffer that holds it (CUDA IPC); engines elsewhere get it from rank 0 (NCCL). A
part's fields are those of vLLM's weight transfer, whose engines read it.
"""

import pickle
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from raggrpo_api.memory.arithmetic import WEIGHT_PART_BYTES

if TYPE_CHECKING:
    from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator


class PartSender:
    """Hands out the weights' parts; each must have been read before the next is asked for.

    `maps`: for CUDA IPC. All parts lie in one buffer then, which is offered once: a process that
    maps it keeps it until it has read the last part.
    """

    def __init__(
        self,
        weights: Iterable[tuple[str, Tensor]],
        *,
        maps: bool,
        size: int = WEIGHT_PART_BYTES,
    ) -> None:
        self._parts, self._maps, self._size = _parts(weights, size), maps, size
        self._tensors: list[Tensor] = []
        self._buffer: Tensor | None = None
        self._handle = b""

    def next(self) -> dict[str, Any] | None:
        """Return what engines are told of the next part (collective); None after the last.

        names, dtype_names and shapes; where it is mapped also tensor_sizes (bytes, in the buffer's
        order) and handle, a pickled {UUID of the GPU: how a process on it maps the buffer}.
        """
        self._tensors = []  # before the next ones are gathered
        named = next(self._parts, [])
        if not named:
            return None
        self._tensors = [tensor.contiguous() for _, tensor in named]
        part: dict[str, Any] = {
            "names": [name for name, _ in named],
            "dtype_names": [str(tensor.dtype).removeprefix("torch.") for _, tensor in named],
            "shapes": [list(tensor.shape) for _, tensor in named],
        }
        return part | self._mapped() if self._maps else part

    def broadcast(self, group: "PyNcclCommunicator") -> None:
        """Send the part's tensors to every other member of the group."""
        for tensor in self._tensors:
            group.broadcast(tensor, src=0)
            if tensor.is_cuda:
                torch.cuda.current_stream(tensor.device).synchronize()

    def _mapped(self) -> dict[str, Any]:
        """Copy the tensors into the buffer."""
        flat = [tensor.view(-1).view(torch.uint8) for tensor in self._tensors]
        sizes = [len(each) for each in flat]
        if self._buffer is None or len(self._buffer) < sum(sizes):
            self._buffer = flat[0].new_empty(max(self._size, sum(sizes)))
            uuid = str(torch.cuda.get_device_properties(self._buffer.device).uuid)
            handle = reduce_tensor(self._buffer)[1]  # type: ignore[no-untyped-call]
            self._handle = pickle.dumps({uuid: handle})
        torch.cat(flat, out=self._buffer[: sum(sizes)])
        torch.cuda.current_stream(self._buffer.device).synchronize()
        self._tensors = []
        return {"tensor_sizes": sizes, "handle": self._handle}


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
