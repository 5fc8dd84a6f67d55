"""`SampleMetrics`: metrics of the samples of one training step."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleMetrics:
    """Metrics of a step's samples; means exclude failed samples and are None if all failed."""

    reward_mean: float | None
    reward_std: float | None
    reward_parts: Mapping[str, float]
    """Mean of each term of the reward."""
    exact_match: float | None
    num_samples: int
    num_failed: int
    zero_variance: float
    """Share of groups with equal rewards, which contribute no gradient."""
    response_tokens: float
    """Mean number of sampled tokens per completion."""
