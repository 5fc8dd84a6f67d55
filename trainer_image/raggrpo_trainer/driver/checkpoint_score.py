"""What a checkpoint is worth: the numbers that stand in it, and the one that it is judged by; pure.

The loss is none of them. GRPO's is a surrogate for the gradient: advantages are centred within
each group, so that it is near 0 for a policy that has learned nothing as for one that has learned
everything (Shao et al., "DeepSeekMath", 2024, equation 3).
"""

import math
from collections.abc import Mapping
from typing import Final

from raggrpo_api.spec.checkpoint import BestBy
from raggrpo_trainer.rollout.validation import ValidationResult

METRICS: Final[Mapping[BestBy, str]] = {
    BestBy.REWARD: "reward_mean",
    BestBy.VALIDATION_EXACT_MATCH: "validation_exact_match",
    BestBy.VALIDATION_REWARD: "validation_reward_mean",
}


def metrics_of(reward: float | None, validation: ValidationResult | None) -> dict[str, float]:
    """Return what is known of a step by name; a validation without a scored prompt says nothing."""
    found = {} if reward is None else {METRICS[BestBy.REWARD]: reward}
    if validation is not None and validation.num_samples:
        found[METRICS[BestBy.VALIDATION_EXACT_MATCH]] = validation.exact_match
        found[METRICS[BestBy.VALIDATION_REWARD]] = validation.reward_mean
    return found


def score_of(metrics: Mapping[str, float], best_by: BestBy) -> float | None:
    """Return what the checkpoint is judged by, larger is better; None if it was not measured."""
    score = metrics.get(METRICS[best_by])
    return score if score is not None and math.isfinite(score) else None
