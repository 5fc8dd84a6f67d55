"""A checksum of parameters and optimizer state over all ranks."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

WORDS = {4: torch.int32, 2: torch.int16, 1: torch.int8}
"""Integer type by element size in bytes."""


def checksum(tensors: Iterable[Tensor], device: torch.device) -> int:
    """Return the sum of all elements' bits modulo 2^64, equal on all ranks (collective).

    A sum does not depend on how tensors are sharded. Each tensor is multiplied by a different
    factor, so changes of two tensors do not cancel out.
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
