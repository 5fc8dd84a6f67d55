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


def read_parts(channel: Connection) -> None:
    """Map the buffer once, as vLLM's IPC engine does; answer with the sums of a part's tensors."""
    import torch
    from torch.multiprocessing.reductions import rebuild_cuda_tensor

    buffer, mapped = None, b""
    while (part := channel.recv()) is not None:
        if part["handle"] != mapped:
            mapped = part["handle"]
            (arguments,) = pickle.loads(mapped).values()
            buffer = rebuild_cuda_tensor(*arguments)
        assert buffer is not None
        sizes = part["tensor_sizes"]
        pieces = torch.split(buffer[: sum(sizes)], sizes)
        sums = {}
        for name, dtype, shape, piece in zip(
            part["names"], part["dtype_names"], part["shapes"], pieces, strict=True
        ):
            tensor = piece.clone().view(getattr(torch, dtype)).view(shape)
            sums[name] = tensor.double().sum().item()
        channel.send(sums)


@pytest.mark.row("G3")
def test_another_process_reads_every_tensor_from_gpu_memory_and_it_is_freed() -> None:
    import torch

    from raggrpo_trainer.weights.device_parts import PartSender

    torch.manual_seed(0)
    weights: dict[str, Any] = {
        f"layer.{number}": torch.randn(1 + number, 64, device="cuda").to(dtype)
        for number, dtype in enumerate([torch.bfloat16, torch.float16, torch.float32] * 3)
    }
    before = torch.cuda.memory_allocated()
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    reader = context.Process(target=read_parts, args=(there,))
    reader.start()
    found: dict[str, float] = {}
    sender = PartSender(weights.items(), maps=True, size=2000)
    number = 0
    while (part := sender.next()) is not None:
        here.send(part)
        found |= here.recv()
        number += 1
    here.send(None)
    reader.join(60)
    del sender
    torch.cuda.ipc_collect()

    assert found == {name: tensor.double().sum().item() for name, tensor in weights.items()}
    assert number > 2
    assert torch.cuda.memory_allocated() == before
