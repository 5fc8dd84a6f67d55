"""Weights handed from one process to another in GPU memory, on a real GPU."""

import multiprocessing
import pickle
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not Path("/dev/nvidia0").exists(), reason="needs an NVIDIA GPU"),
]


def load_chunks(channel: Connection) -> None:
    """Map the buffer once, as vLLM's IPC backend does; send back the sum of each tensor."""
    import torch
    from torch.multiprocessing.reductions import rebuild_cuda_tensor

    buffer, mapped = None, b""
    while (chunk := channel.recv()) is not None:
        if chunk["handle"] != mapped:
            mapped = chunk["handle"]
            (arguments,) = pickle.loads(mapped).values()
            buffer = rebuild_cuda_tensor(*arguments)
        assert buffer is not None
        sizes = chunk["tensor_sizes"]
        pieces = torch.split(buffer[: sum(sizes)], sizes)
        received = {}
        for name, dtype, shape, piece in zip(
            chunk["names"], chunk["dtype_names"], chunk["shapes"], pieces, strict=True
        ):
            tensor = piece.clone().view(getattr(torch, dtype)).view(shape)
            received[name] = tensor.double().sum().item()
        channel.send(received)


@pytest.mark.row("G3")
def test_ipc_buffer_is_read_by_another_process_and_freed() -> None:
    import torch

    from raggrpo_trainer.weights.rank_side import IpcChunkSender

    torch.manual_seed(0)
    weights: dict[str, Any] = {
        f"layer.{number}": torch.randn(1 + number, 64, device="cuda").to(dtype)
        for number, dtype in enumerate([torch.bfloat16, torch.float16, torch.float32] * 3)
    }
    before = torch.cuda.memory_allocated()
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    reader = context.Process(target=load_chunks, args=(there,))
    reader.start()
    sums: dict[str, float] = {}
    sender = IpcChunkSender(weights.items(), size=2000)
    number = 0
    while (chunk := sender.next()) is not None:
        here.send(chunk)
        sums |= here.recv()
        number += 1
    here.send(None)
    reader.join(60)
    del sender
    torch.cuda.ipc_collect()

    assert sums == {name: tensor.double().sum().item() for name, tensor in weights.items()}
    assert number > 2
    assert torch.cuda.memory_allocated() == before
