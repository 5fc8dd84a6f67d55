"""A rank's side of the IPC and NCCL backends: gathers full tensors, one chunk after another.

All ranks gather the same tensors, so each GPU holds a whole chunk and the first tensor of the next
chunk. The fields of a chunk are those of vLLM's weight transfer backends.
"""

import pickle
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from raggrpo_api.memory.arithmetic import WEIGHT_CHUNK_BYTES

from .backend import WeightTransferBackend

if TYPE_CHECKING:
    from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator


class ChunkSender:
    """Gathers the chunks of one transfer; engines must load each chunk before the next is gathered.

    `weights` yields (name, full tensor). `size` is the maximum size of a chunk in bytes; a larger
    tensor is a separate chunk.
    """

    def __init__(
        self, weights: Iterable[tuple[str, Tensor]], *, size: int = WEIGHT_CHUNK_BYTES
    ) -> None:
        self._size = size
        self._chunks = _chunks(weights, size)
        self._tensors: list[Tensor] = []

    def next(self) -> dict[str, Any] | None:
        """Gather the next chunk (collective); return its description, or None after the last one.

        The description has `names`, `dtype_names` (without "torch.") and `shapes`, in order.
        """
        self._tensors = []  # free these tensors before gathering the next ones
        named = next(self._chunks, [])
        if not named:
            return None
        self._tensors = [tensor.contiguous() for _, tensor in named]
        return {
            "names": [name for name, _ in named],
            "dtype_names": [str(tensor.dtype).removeprefix("torch.") for _, tensor in named],
            "shapes": [list(tensor.shape) for _, tensor in named],
        }


class IpcChunkSender(ChunkSender):
    """Copies each chunk into one buffer, whose handle is the same for all chunks.

    A process that maps the buffer keeps it mapped until it has loaded the last chunk.
    """

    _buffer: Tensor | None = None
    _handle = b""

    def next(self) -> dict[str, Any] | None:
        """Gather the next chunk into the buffer (collective).

        The description also has `tensor_sizes` (bytes, in order) and `handle`, the pickled {UUID of
        the GPU: arguments of `rebuild_cuda_tensor`}.
        """
        chunk = super().next()
        if chunk is None:
            return None
        flat = [tensor.view(-1).view(torch.uint8) for tensor in self._tensors]
        sizes = [len(each) for each in flat]
        if self._buffer is None or len(self._buffer) < sum(sizes):
            self._buffer = flat[0].new_empty(max(self._size, sum(sizes)))
            uuid = str(torch.cuda.get_device_properties(self._buffer.device).uuid)
            arguments = reduce_tensor(self._buffer)[1]  # type: ignore[no-untyped-call]
            self._handle = pickle.dumps({uuid: arguments})
        torch.cat(flat, out=self._buffer[: sum(sizes)])
        torch.cuda.current_stream(self._buffer.device).synchronize()
        self._tensors = []
        return chunk | {"tensor_sizes": sizes, "handle": self._handle}


class NcclChunkSender(ChunkSender):
    """Broadcasts each chunk to the engines' workers."""

    def broadcast(self, group: "PyNcclCommunicator") -> None:
        """Send the chunk's tensors to every other member of the group; blocks."""
        for tensor in self._tensors:
            group.broadcast(tensor, src=0)
            if tensor.is_cuda:
                torch.cuda.current_stream(tensor.device).synchronize()


def chunk_sender(
    backend: WeightTransferBackend, weights: Iterable[tuple[str, Tensor]]
) -> ChunkSender:
    """Return the chunk sender of a GPU backend for one transfer."""
    is_ipc = backend is WeightTransferBackend.IPC
    return IpcChunkSender(weights) if is_ipc else NcclChunkSender(weights)


def join_nccl_group(address: str, port: int, world_size: int) -> "PyNcclCommunicator":
    """Join vLLM's NCCL group with the engines' workers, as rank 0 of the group; blocks."""
    from vllm.distributed.weight_transfer.nccl_common import trainer_init

    return trainer_init({"master_address": address, "master_port": port, "world_size": world_size})


def _chunks(weights: Iterable[tuple[str, Tensor]], size: int) -> Iterator[list[tuple[str, Tensor]]]:
    chunk: list[tuple[str, Tensor]] = []
    num_bytes = 0
    for name, tensor in weights:
        if chunk and num_bytes + tensor.nbytes > size:
            yield chunk
            chunk = []
            num_bytes = 0
        chunk.append((name, tensor))
        num_bytes += tensor.nbytes
    if chunk:
        yield chunk
