"""Settings of the GRPO objective and the weight of each token in the loss."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from raggrpo_api.spec.algorithm import LossAggregation


@dataclass(frozen=True, slots=True)
class Objective:
    """Settings of the objective, with the names of the fields of `spec.algorithm`."""

    clip_ratio_low: float
    clip_ratio_high: float
    importance_cap: float
    kl_coefficient: float
    loss_aggregation: LossAggregation
    max_response_length: int
    dual_clip: float = 0.0
    """Bound of the ratio for negative advantages (dual clip); 0 if off."""


def token_weights(lengths: Sequence[int], objective: Objective) -> list[float]:
    """Return the token weight of each completion; the loss is the weighted sum of token losses.

    `lengths` has the number of sampled tokens of every completion in the batch on all ranks,
    including those skipped because their advantage is zero. So the weights include the global
    denominator, and sums over micro-batches and ranks need no further division.
    """
    match objective.loss_aggregation:
        case LossAggregation.TOKEN_MEAN:
            total = sum(lengths)
            return [1.0 / total if length else 0.0 for length in lengths]
        case LossAggregation.SEQUENCE_MEAN:
            return [1.0 / (len(lengths) * length) if length else 0.0 for length in lengths]
        case LossAggregation.FIXED_LENGTH:
            return [1.0 / (len(lengths) * objective.max_response_length)] * len(lengths)
        case _:
            assert_never(objective.loss_aggregation)
