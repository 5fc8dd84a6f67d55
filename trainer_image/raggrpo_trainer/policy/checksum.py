"""A checksum over all ranks of what training has made: parameters and optimiser state."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

WORDS = {4: torch.int32, 2: torch.int16, 1: torch.int8}
"""Integers by the size of the elements that are read as such."""


def checksum(tensors: Iterable[Tensor], device: torch.device) -> int:
    """Return the sum of all elements' bits modulo 2^64, the same on every rank (collective).

    Addition makes it independent of how the tensors are sharded. Each has a factor of its own, so
    that changes of two of them do not cancel out.
    """
    total = torch.zeros((), dtype=torch.int64, device=device)
    for number, tensor in enumerate(tensors):
        local = tensor.detach()
        if isinstance(local, DTensor):
            local = local.to_local()
        bits = local.view(WORDS[local.element_size()]).sum(dtype=torch.int64)
        total += (2 * number + 1) * bits
    dist.all_reduce(total)
    return int(total)
