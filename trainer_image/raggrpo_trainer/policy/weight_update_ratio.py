"""How far an update has moved the weights: ‖Δw‖ / ‖w‖ over all ranks. Must not change anything.

A copy of the weights would cost as much memory as the weights. AdamW's state holds all that an
update consists of (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019):

    w ← w - η λ w - η m̂ / (√v̂ + ε),   m̂ = m / (1 - β₁ᵗ),   v̂ = v / (1 - β₂ᵗ)

so that Δw is worked out again from there, one parameter at a time.
"""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor


@torch.no_grad()
def weight_update_ratio(optimizer: torch.optim.AdamW) -> float:
    """Return ‖Δw‖ / ‖w‖ of the newest update; w are the weights after it (collective).

    The weights are sharded, so that every rank has a part of each sum.
    """
    squares: list[Tensor] = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            weights, change = _local(parameter), _change(parameter, optimizer, group)
            norms = [torch.linalg.vector_norm(each) for each in (change, weights)]
            squares.append(torch.stack(norms).double().square())
    sums = torch.stack(squares).sum(dim=0)
    dist.all_reduce(sums)
    moved, whole = sums.tolist()
    return math.sqrt(moved / whole) if whole else 0.0


def _change(parameter: Tensor, optimizer: torch.optim.AdamW, group: dict[str, Any]) -> Tensor:
    """Return Δw of this rank's part of a parameter."""
    state, (beta1, beta2) = optimizer.state[parameter], group["betas"]
    rate, decay, count = group["lr"], group["weight_decay"], state["step"].item()
    deviation = _local(state["exp_avg_sq"]).sqrt().div_(math.sqrt(1 - beta2**count))
    change = _local(state["exp_avg"]) / deviation.add_(group["eps"])
    change.mul_(-rate / (1 - beta1**count))
    if decay:  # w_old = (w - change) / (1 - ηλ), and Δw = change - ηλ w_old
        shrunk = rate * decay
        before = _local(parameter).sub(change).div_(1 - shrunk)
        change.sub_(before, alpha=shrunk)
    return change


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
