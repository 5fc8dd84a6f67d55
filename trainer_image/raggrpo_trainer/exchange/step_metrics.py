"""Metrics of one training step and their reduction. Must not import torch.

A metric of the loss is declared here with its reduction, and computed in `policy.loss`. The metric
has the same name in the history, TensorBoard, W&B, Progress and /metrics.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Annotated, Any, Generic, TypeVar, assert_never, get_type_hints

from .groups import Group

N = TypeVar("N")


class Reduction(Enum):
    """How values per token are reduced to one value per step."""

    TOKEN_MEAN = auto()
    """Mean over the step's trained tokens."""
    UPDATE_MEAN = auto()
    """Sum over the tokens of an update, averaged over the step's updates."""
    MAX = auto()
    """Maximum; values must not be negative."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossMetrics(Generic[N]):
    """Metrics of the loss: N is Tensor for a micro-batch, float for an update or a step."""

    loss: Annotated[N, Reduction.UPDATE_MEAN]
    """Loss; for a micro-batch, the micro-batch's share of the loss, with gradient."""
    mismatch_mean: Annotated[N, Reduction.TOKEN_MEAN]
    """Mean |trainer - rollout logprob|, in nats per token."""
    mismatch_max: Annotated[N, Reduction.MAX]
    importance_mean: Annotated[N, Reduction.TOKEN_MEAN]
    clip_fraction: Annotated[N, Reduction.TOKEN_MEAN]
    """Share of tokens whose gradient is zero because the ratio is clipped."""
    kl: Annotated[N, Reduction.TOKEN_MEAN]


REDUCTIONS: dict[str, Reduction] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(LossMetrics, include_extras=True).items()
}
SUMS = tuple(name for name in REDUCTIONS if REDUCTIONS[name] is not Reduction.MAX)
MAXIMA = tuple(name for name in REDUCTIONS if REDUCTIONS[name] is Reduction.MAX)


@dataclass(frozen=True, slots=True)
class Update:
    """One update over all ranks."""

    totals: LossMetrics[float]
    """Sums and maxima over the tokens."""
    num_tokens: int
    num_positions: int
    grad_norm: float

    @property
    def is_finite(self) -> bool:
        """Whether loss and gradient norm are finite, so that the update can be applied."""
        return math.isfinite(self.totals.loss) and math.isfinite(self.grad_norm)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics(LossMetrics[float]):
    """Metrics of a step over all ranks; those of memory, durations and device are this rank's."""

    entropy: float
    """Entropy of the policy that sampled, in nats per token: mean -logprob, as reported by the
    engine, of all sampled tokens of the batch, including completions that are not trained on."""
    num_sampled_tokens: int
    """Number of sampled tokens in the whole batch."""
    num_trained_tokens: int
    """Number of sampled tokens trained on; completions with zero advantage are skipped."""
    num_positions: int
    """Number of positions in the forward passes, including prompts and padding."""
    grad_norm: float
    """Gradient norm before clipping; maximum over the step's updates."""
    learning_rate: float
    weight_update_ratio: float | None
    """‖Δw‖ / ‖w‖ of the step's last update; None if it was not due or no update was applied."""
    num_skipped_updates: int
    """Number of updates skipped because gradients exceeded FP16's range; not in other metrics."""
    loss_scale: float
    """Loss scale after the step; 1 unless the precision is FP16."""
    non_finite: bool
    """Whether a loss or gradient norm was not finite; that update and later ones were skipped."""
    rank_memory_bytes: int
    """Memory usage of the rank's pod after the step, in bytes."""
    device_memory_bytes: int | None
    """Peak memory of tensors on the device during the step, in bytes; None on a CPU."""
    device_memory_reserved_bytes: int | None
    """Peak memory reserved by torch's allocator on the device, in bytes; None on a CPU."""
    device_utilization: float | None = field(compare=False)
    """Share of the last second of the step in which the device ran a kernel; None if unknown."""
    forward_seconds: float = field(compare=False)
    """Seconds of forward passes, of the reference model too, and the loss."""
    backward_seconds: float = field(compare=False)
    """Seconds of backward passes, including the reduction of gradients over the ranks."""
    optimizer_seconds: float = field(compare=False)
    """Seconds of gradient clipping and the update of the parameters."""

    def phase_seconds(self) -> dict[str, float]:
        """Return the seconds by phase of the training stage."""
        return {
            "forward": self.forward_seconds,
            "backward": self.backward_seconds,
            "optimizer": self.optimizer_seconds,
        }


RANK_MAXIMA = (
    "rank_memory_bytes",
    "device_memory_bytes",
    "device_memory_reserved_bytes",
    "forward_seconds",
    "backward_seconds",
    "optimizer_seconds",
)
"""Fields of StepMetrics that each rank measures; their maximum over the ranks is reported."""


def merge_ranks(metrics: Sequence[StepMetrics]) -> StepMetrics:
    """Return the metrics of a step from those of its ranks, of which there is at least one."""

    def known(name: str) -> list[float]:
        values = [getattr(each, name) for each in metrics]
        return [value for value in values if value is not None]

    merged: dict[str, Any] = {name: max(known(name), default=None) for name in RANK_MAXIMA}
    lowest = min(known("device_utilization"), default=None)
    return replace(metrics[0], **merged, device_utilization=lowest)


def reduce_updates(updates: Sequence[Update]) -> dict[str, float]:
    """Return the step's LossMetrics by name."""
    per_token = 1.0 / max(1, sum(update.num_tokens for update in updates))
    metrics: dict[str, float] = {}
    for name, reduction in REDUCTIONS.items():
        values = [getattr(update.totals, name) for update in updates]
        match reduction:
            case Reduction.TOKEN_MEAN:
                metrics[name] = per_token * sum(values)
            case Reduction.UPDATE_MEAN:
                metrics[name] = sum(values) / max(1, len(values))
            case Reduction.MAX:
                metrics[name] = max(values, default=0.0)
            case _:
                assert_never(reduction)
    return metrics


def sampled_entropy(groups: Sequence[Group]) -> float:
    """Return the mean -logprob of all sampled tokens in nats, 0 without sampled tokens.

    Completions with zero advantage are included: a confident policy has many of them, so the
    entropy would be too high without them.
    """
    sampled = [
        -logprob
        for group in groups
        for completion in group.completions
        for logprob, is_sampled in zip(completion.rollout_logprobs, completion.sampled, strict=True)
        if is_sampled
    ]
    return math.fsum(sampled) / max(1, len(sampled))
