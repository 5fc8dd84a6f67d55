"""Totals of the metrics of one update, accumulated on the device."""

import torch
import torch.distributed as dist
from torch import Tensor

from raggrpo_trainer.exchange.step_metrics import MAXIMA, SUMS, LossMetrics, Update

from .packing import MicroBatch


class UpdateTotals:
    """Sums and maxima over the micro-batches of an update."""

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(len(SUMS), dtype=torch.float64, device=device)
        self._maxima = torch.zeros(len(MAXIMA), dtype=torch.float64, device=device)
        self._num_tokens = self._num_positions = 0

    def add(self, batch: MicroBatch, metrics: LossMetrics[Tensor]) -> None:
        """Add the metrics of a micro-batch without synchronizing with the device."""
        sums = [getattr(metrics, name).detach().sum().double() for name in SUMS]
        largest = [_largest(getattr(metrics, name).detach()) for name in MAXIMA]
        self._sums += torch.stack(sums)
        self._maxima = torch.maximum(self._maxima, torch.stack(largest))
        self._num_tokens += batch.targets.numel()
        self._num_positions += batch.input_ids.numel()

    def all_reduce(self, grad_norm: float) -> Update:
        """Return the totals over all ranks (collective)."""
        counts = self._sums.new_tensor([self._num_tokens, self._num_positions])
        sums = torch.cat([self._sums, counts])
        dist.all_reduce(sums)
        dist.all_reduce(self._maxima, dist.ReduceOp.MAX)
        *totals, num_tokens, num_positions = [*self._maxima.tolist(), *sums.tolist()]
        by_name = dict(zip((*MAXIMA, *SUMS), totals, strict=True))
        return Update(LossMetrics(**by_name), round(num_tokens), round(num_positions), grad_norm)


def _largest(values: Tensor) -> Tensor:
    return (values.max() if values.numel() else values.sum()).double()
