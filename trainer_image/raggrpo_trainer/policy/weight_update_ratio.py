"""Relative size of an update, ‖Δw‖ / ‖w‖ over all ranks. Must not change optimizer or weights.

A copy of the weights would double their memory. Instead, Δw is computed again from AdamW's state
(Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019), one parameter at a time:

    w ← w - η λ w - η m̂ / (√v̂ + ε),   m̂ = m / (1 - β₁ᵗ),   v̂ = v / (1 - β₂ᵗ)

With adapters, w are all weights after merging: Δw = scale·(ΔB·A + B_old·ΔA), or 0 if frozen.
"""

import math
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from raggrpo_trainer.weights.export import full_tensor

from .lora import LoraLinear, adapted_layers, merged_weight

Gather = Callable[[Tensor], Tensor]
"""Function that returns a tensor's local shard, or all of it."""


@torch.no_grad()
def weight_update_ratio(model: nn.Module, optimizer: torch.optim.AdamW) -> float:
    """Return ‖Δw‖ / ‖w‖ of the last update; w are the weights after the update (collective).

    All parameters must be sharded, as they are after a backward pass.
    """
    squares: list[Tensor] = []
    for change, weight in _changes(model, _LastUpdate(optimizer)):
        norms = [torch.linalg.vector_norm(each, dtype=torch.float32) for each in (change, weight)]
        squares.append(torch.stack(norms).double().square())
    sums = torch.stack(squares).sum(dim=0)
    dist.all_reduce(sums)
    change_square, weight_square = sums.tolist()
    return math.sqrt(change_square / weight_square) if weight_square else 0.0


class _LastUpdate:
    """The last update of AdamW."""

    def __init__(self, optimizer: torch.optim.AdamW) -> None:
        self._state = optimizer.state
        self._groups = {each: group for group in optimizer.param_groups for each in group["params"]}

    def __contains__(self, parameter: Tensor) -> bool:
        return parameter in self._groups

    def delta(self, parameter: Tensor, gather: Gather) -> Tensor:
        """Return Δw of a parameter; `gather` is applied to the parameter and its moments."""
        state, group = self._state[parameter], self._groups[parameter]
        beta1, beta2 = group["betas"]
        rate = group["lr"]
        decay = group["weight_decay"]
        count = state["step"].item()
        deviation = gather(state["exp_avg_sq"]).sqrt().div_(math.sqrt(1 - beta2**count))
        delta = gather(state["exp_avg"]) / deviation.add_(group["eps"])
        delta.mul_(-rate / (1 - beta1**count))
        if decay:  # w_old = (w - delta) / (1 - ηλ), and Δw = delta - ηλ w_old
            shrinkage = rate * decay
            previous = gather(parameter).sub(delta).div_(1 - shrinkage)
            delta.sub_(previous, alpha=shrinkage)
        return delta


def _changes(model: nn.Module, update: _LastUpdate) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield Δw and w of this rank's shard of each weight."""
    layers = adapted_layers(model).values()
    for layer in layers:
        yield _merged_change(layer, update)
    merged = {each for layer in layers for each in (layer.weight, layer.lora_A, layer.lora_B)}
    for parameter in model.parameters():
        if parameter in merged:
            continue
        weight = _local(parameter)
        is_trained = parameter in update
        yield update.delta(parameter, _local) if is_trained else weight.new_zeros(1), weight


def _merged_change(layer: LoraLinear, update: _LastUpdate) -> tuple[Tensor, Tensor]:
    """Return Δw and w of this rank's rows of a layer with an adapter; B is sharded like W."""
    lora_a, change_a = _full(layer.lora_A), update.delta(layer.lora_A, _full)
    lora_b, change_b = _local(layer.lora_B), update.delta(layer.lora_B, _local)
    change = change_b @ lora_a + (lora_b - change_b) @ change_a
    weight = _local(layer.weight).to(lora_b.dtype)
    return layer.lora_scale * change, merged_weight(weight, lora_a, lora_b, layer.lora_scale)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _full(tensor: Tensor) -> Tensor:
    return full_tensor(tensor, tensor.dtype)
