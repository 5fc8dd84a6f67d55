"""Settings of the GRPO objective and the weight of each token in the loss."""

from collections import Counter
from collections.abc import Hashable, Sequence
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


def token_weights(
    lengths: Sequence[int], objective: Objective, samples: Sequence[Hashable] | None = None
) -> list[float]:
    """Return the token weight of each completion; the loss is the weighted sum of token losses.

    `lengths` has the number of sampled tokens of every completion in the batch on all ranks,
    including those skipped because their advantage is zero. So the weights include the global
    denominator, and sums over micro-batches and ranks need no further division. `samples` has the
    key of each completion's sample: completions of one sample weigh as much as one completion with
    all their tokens. Without `samples`, each completion is a sample.
    """
    keys = range(len(lengths)) if samples is None else samples
    length_of: Counter[Hashable] = Counter()
    for key, length in zip(keys, lengths, strict=True):
        length_of[key] += length
    num_samples = len(length_of)
    match objective.loss_aggregation:
        case LossAggregation.TOKEN_MEAN:
            total = sum(lengths)
            return [1.0 / total if length else 0.0 for length in lengths]
        case LossAggregation.SEQUENCE_MEAN:
            totals = [length_of[key] for key in keys]
            return [1.0 / (num_samples * total) if total else 0.0 for total in totals]
        case LossAggregation.FIXED_LENGTH:
            return [1.0 / (num_samples * objective.max_response_length)] * len(lengths)
        case _:
            assert_never(objective.loss_aggregation)
