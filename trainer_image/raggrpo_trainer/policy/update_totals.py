"""The sums of one update, counted on the device; must not know the model."""

import torch
import torch.distributed as dist
from torch import Tensor

from raggrpo_trainer.exchange.step_metrics import UpdateSums

from .loss import LossTerms
from .packing import MicroBatch


class UpdateTotals:
    """Sums over the micro-batches of one update."""

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(8, dtype=torch.float64, device=device)
        self._largest = torch.zeros((), dtype=torch.float64, device=device)

    def add(self, batch: MicroBatch, logprobs: Tensor, terms: LossTerms) -> None:
        """Count one micro-batch of this rank; waits for nothing."""
        sums = (
            *(terms.loss, terms.clipped, terms.mismatch_sum, terms.importance_sum, terms.kl_sum),
            -logprobs.sum(),
        )
        self._sums[:6] += torch.stack([term.detach().double() for term in sums])
        self._sums[6] += batch.targets.numel()
        self._sums[7] += batch.input_ids.numel()
        self._largest = torch.maximum(self._largest, terms.mismatch_max)

    def over_ranks(self) -> UpdateSums:
        """Add up all ranks (collective)."""
        dist.all_reduce(self._sums)
        dist.all_reduce(self._largest, dist.ReduceOp.MAX)
        return UpdateSums(*[*self._sums.tolist(), self._largest.item()])
