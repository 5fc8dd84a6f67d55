"""What one training step reports and how it is reduced; knows neither model nor torch.

A metric of the loss is declared here, with its reduction, and computed in policy.loss. History,
TensorBoard, W&B, Progress and the metrics page show it under its name.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Annotated, Generic, TypeVar, assert_never, get_type_hints

from .groups import Group

N = TypeVar("N")


class Reduction(Enum):
    """How per-token numbers become one number per step."""

    TOKEN_MEAN = auto()
    """Mean over the step's trained tokens."""
    UPDATE_MEAN = auto()
    """Sum over an update's tokens, averaged over the step's updates."""
    MAX = auto()
    """Largest value; values must not be negative."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossMetrics(Generic[N]):
    """What the loss measures: N is Tensor for one micro-batch, float for an update or a step."""

    loss: Annotated[N, Reduction.UPDATE_MEAN]
    """For a micro-batch, its share of the loss, which carries the gradient."""
    mismatch_mean: Annotated[N, Reduction.TOKEN_MEAN]
    """Of |trainer - rollout log-probability|."""
    mismatch_max: Annotated[N, Reduction.MAX]
    importance_mean: Annotated[N, Reduction.TOKEN_MEAN]
    clip_fraction: Annotated[N, Reduction.TOKEN_MEAN]
    """Share of tokens whose gradient was clipped away."""
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
    """Sums and maxima over its tokens."""
    num_tokens: int
    num_positions: int
    grad_norm: float

    @property
    def is_finite(self) -> bool:
        """Whether the optimiser may apply it."""
        return math.isfinite(self.totals.loss) and math.isfinite(self.grad_norm)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics(LossMetrics[float]):
    """One step over all ranks, except for the memory, which is this rank's own."""

    entropy: float
    """Of the policy that sampled: the mean -log-probability that the engine reports for all sampled
    tokens of the batch, also those of completions that are not trained on."""
    num_sampled_tokens: int
    """In the whole batch."""
    num_trained_tokens: int
    """Tokens trained on; completions with zero advantage are skipped."""
    num_positions: int
    """Positions in the forward passes, including prompts and padding."""
    grad_norm: float
    """Before clipping; the largest of the step's updates."""
    learning_rate: float
    weight_update_ratio: float | None
    """‖Δw‖ / ‖w‖ of the step's last update, where it was due; None if none was applied."""
    num_skipped_updates: int
    """Updates left out because gradients exceeded FP16's range; the step's other numbers leave
    them out too."""
    loss_scale: float
    """After the step; 1 unless the precision is FP16."""
    non_finite: bool
    """A loss or gradient norm was not finite; that update and those after it were skipped."""
    rank_memory_bytes: int
    """Memory used by the rank's pod after the step."""
    device_memory_bytes: int | None
    """Peak held by tensors during the step; None on a CPU."""


def reduced(updates: Sequence[Update]) -> dict[str, float]:
    """Return the step's LossMetrics by name."""
    per_token = 1.0 / max(1, sum(update.num_tokens for update in updates))
    found: dict[str, float] = {}
    for name, reduction in REDUCTIONS.items():
        values = [getattr(update.totals, name) for update in updates]
        match reduction:
            case Reduction.TOKEN_MEAN:
                found[name] = per_token * sum(values)
            case Reduction.UPDATE_MEAN:
                found[name] = sum(values) / max(1, len(values))
            case Reduction.MAX:
                found[name] = max(values, default=0.0)
            case _:
                assert_never(reduction)
    return found


def sampled_entropy(groups: Sequence[Group]) -> float:
    """Return the mean -log-probability of all sampled tokens, in nats; 0 without any.

    Completions without advantage count too: leaving them out would show too high an entropy, since
    a policy that is sure of its answer gives equal ones.
    """
    sampled = [
        -logprob
        for group in groups
        for done in group.completions
        for logprob, is_sampled in zip(done.rollout_logprobs, done.sampled, strict=True)
        if is_sampled
    ]
    return math.fsum(sampled) / max(1, len(sampled))
