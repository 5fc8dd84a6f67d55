"""Relative size of an update, ‖Δw‖ / ‖w‖ over all ranks. Must not change optimizer or weights.

A copy of the weights would double their memory. Instead, Δw is computed again from AdamW's state
(Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019), one parameter at a time:

    w ← w - η λ w - η m̂ / (√v̂ + ε),   m̂ = m / (1 - β₁ᵗ),   v̂ = v / (1 - β₂ᵗ)
"""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor


@torch.no_grad()
def weight_update_ratio(optimizer: torch.optim.AdamW) -> float:
    """Return ‖Δw‖ / ‖w‖ of the last update; w are the weights after the update (collective)."""
    squares: list[Tensor] = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            change = _change(parameter, optimizer, group)
            norms = [torch.linalg.vector_norm(each) for each in (change, _local(parameter))]
            squares.append(torch.stack(norms).double().square())
    sums = torch.stack(squares).sum(dim=0)
    dist.all_reduce(sums)
    change_square, weight_square = sums.tolist()
    return math.sqrt(change_square / weight_square) if weight_square else 0.0


def _change(parameter: Tensor, optimizer: torch.optim.AdamW, group: dict[str, Any]) -> Tensor:
    """Return Δw of this rank's shard of a parameter."""
    state = optimizer.state[parameter]
    beta1, beta2 = group["betas"]
    rate = group["lr"]
    decay = group["weight_decay"]
    count = state["step"].item()
    deviation = _local(state["exp_avg_sq"]).sqrt().div_(math.sqrt(1 - beta2**count))
    change = _local(state["exp_avg"]) / deviation.add_(group["eps"])
    change.mul_(-rate / (1 - beta1**count))
    if decay:  # w_old = (w - change) / (1 - ηλ), and Δw = change - ηλ w_old
        shrinkage = rate * decay
        previous = _local(parameter).sub(change).div_(1 - shrinkage)
        change.sub_(previous, alpha=shrinkage)
    return change


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
