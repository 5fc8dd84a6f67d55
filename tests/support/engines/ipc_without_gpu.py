"""CUDA IPC without a GPU: the shared buffer is a memory-mapped file instead of GPU memory.

Only the handles of torch are replaced, on both sides of a transfer; ranks and vLLM run their own
code. vLLM imports this module in its worker process as the module of the worker extension.
"""

import hashlib
import multiprocessing
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.multiprocessing.reductions
from torch import Tensor

from raggrpo_trainer.engines.engine_options import EngineOptions
from raggrpo_trainer.weights import rank_side
from raggrpo_trainer.weights.vllm_extension import WorkerExtension

GPU = SimpleNamespace(uuid="GPU-0")
"""The device properties of both sides."""
DEVICE_INDEX = 6
"""Position of the device in the arguments of `rebuild_cuda_tensor`; vLLM replaces it."""


@contextmanager
def exported_buffers() -> Iterator[list[Path]]:
    """Let `IpcChunkSender` export its buffers as files; yields the files."""
    files: list[Path] = []

    def reduce_tensor(buffer: Tensor) -> tuple[None, tuple[Any, ...]]:
        file = Path(folder) / str(len(files))
        files.append(file)
        storage = torch.UntypedStorage.from_file(str(file), True, buffer.nbytes)
        buffer.set_(storage, 0, buffer.shape)
        return None, (str(file), buffer.nbytes, None, None, None, None, 0)

    stream = SimpleNamespace(synchronize=lambda: None)
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
        mock.patch.object(rank_side, "reduce_tensor", reduce_tensor),
        mock.patch.object(torch.cuda, "get_device_properties", return_value=GPU),
        mock.patch.object(torch.cuda, "current_stream", return_value=stream),
    ):
        yield files


def digest(tensor: Tensor) -> str:
    """Return the digest of a tensor's data type, shape and bits."""
    data = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return f"{tensor.dtype} {list(tensor.shape)} {hashlib.sha256(data).hexdigest()}"


class Extension(WorkerExtension):
    """A worker extension that reports what its process has mapped and received."""

    def mapped_buffers(self) -> tuple[int, int]:
        """Return how often a buffer was mapped and how many buffers are still mapped."""
        return len(_mapped), sum(each() is not None for each in _mapped)

    def received_tensors(self) -> dict[str, str]:
        """Return the `digest` of each tensor that vLLM received, and reset the record."""
        received = dict(_received)
        _received.clear()
        return received


class IpcOptions(EngineOptions):
    """Options of an engine on CPU that loads tensor chunks as on a GPU."""

    def arguments(self) -> dict[str, Any]:
        from vllm.config.weight_transfer import WeightTransferConfig

        return EngineOptions.arguments(self) | {
            "weight_transfer_config": WeightTransferConfig(backend="ipc"),
            "worker_extension_cls": f"{__name__}.Extension",
        }


_mapped: list[weakref.ref[Tensor]] = []
_received: dict[str, str] = {}


def _rebuild_cuda_tensor(*arguments: Any) -> Tensor:
    file, size = arguments[:2]
    assert len(arguments) > DEVICE_INDEX
    buffer = torch.from_file(file, shared=True, size=size, dtype=torch.uint8)
    _mapped.append(weakref.ref(buffer))
    return buffer


def _record(unpack: Callable[..., list[tuple[str, Tensor]]]) -> Callable[..., Any]:
    """Wrap vLLM's function that copies tensors from the mapped buffer."""

    def unpack_and_record(*arguments: Any, **named: Any) -> list[tuple[str, Tensor]]:
        tensors = unpack(*arguments, **named)
        _received.update((name, digest(tensor)) for name, tensor in tensors)
        return tensors

    return unpack_and_record


if multiprocessing.parent_process() is not None:  # in vLLM's worker process
    from vllm.distributed.weight_transfer import ipc_engine

    _engine: Any = ipc_engine
    _engine.packed_ipc_consumer = _record(_engine.packed_ipc_consumer)
    _patched: Any = torch.multiprocessing.reductions
    _patched.rebuild_cuda_tensor = _rebuild_cuda_tensor
    _cuda: Any = torch.cuda
    _cuda.get_device_properties = lambda _: GPU
