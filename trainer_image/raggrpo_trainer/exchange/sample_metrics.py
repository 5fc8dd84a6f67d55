"""`SampleMetrics`: metrics of the samples of one training step."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from raggrpo_api.trainer.learning import NotLearningReason


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
    zero_reward: float
    """Share of samples without a reward other than 0; failed samples have none."""
    truncated: float | None
    """Share of completions that were cut at `data.maxResponseLength`."""
    parsed: float | None
    """Share of completions with the output that the reward reads."""
    response_tokens: float
    """Mean number of sampled tokens per completion."""
    examples: Mapping[NotLearningReason, str] = field(default_factory=dict)
    """Descriptions of samples, by the sign for which each is an example."""
