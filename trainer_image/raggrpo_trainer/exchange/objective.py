"""What GRPO optimises and how much each token counts, without torch: the driver reads it too."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from raggrpo_api.spec.algorithm import LossAggregation


@dataclass(frozen=True, slots=True)
class Objective:
    """What is optimised; the names are those of `spec.algorithm`."""

    clip_ratio_low: float
    clip_ratio_high: float
    importance_cap: float
    kl_coefficient: float
    loss_aggregation: LossAggregation
    max_response_length: int


def token_weights(lengths: Sequence[int], objective: Objective) -> list[float]:
    """Return the weight of each token's loss, per completion, so that the weighted sum is the loss.

    `lengths` counts the sampled tokens of *every* completion of the batch on all ranks, also of
    those that are not computed because their advantage is zero: the weights hold the global
    denominator, hence sums over micro-batches and ranks need no further division.
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
