"""The score that determines the best checkpoint. Pure.

The loss is not a score. GRPO's loss is a surrogate for the gradient: advantages are centered within
each group, so the loss is near 0 both for a policy that has learned nothing and for a policy that
has learned everything (Shao et al., "DeepSeekMath", 2024, equation 3).
"""

import math
from collections.abc import Mapping
from typing import Final

from raggrpo_api.spec.checkpoint import BestBy
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_trainer.exchange.validation_result import ValidationResult

METRICS: Final[Mapping[BestBy, str]] = {
    BestBy.REWARD: "reward_mean",
    BestBy.VALIDATION_EXACT_MATCH: "validation_exact_match",
    BestBy.VALIDATION_REWARD: "validation_reward_mean",
}


def checkpoint_metrics(
    reward: float | None, validation: ValidationResult | None
) -> dict[str, float]:
    """Return the checkpoint's metrics by name; a validation that scored no prompt adds none."""
    metrics = {} if reward is None else {METRICS[BestBy.REWARD]: reward}
    if validation is not None and validation.num_samples:
        if validation.exact_match is not None:
            metrics[METRICS[BestBy.VALIDATION_EXACT_MATCH]] = validation.exact_match
        metrics[METRICS[BestBy.VALIDATION_REWARD]] = validation.reward_mean
    return metrics


def checkpoint_score(metrics: Mapping[str, float], best_by: BestBy) -> float | None:
    """Return the score (larger is better), or None if the metric is missing or not finite."""
    score = metrics.get(METRICS[best_by])
    return score if score is not None and math.isfinite(score) else None


def is_scored_by_validation(config: TrainerConfig) -> bool:
    """Return whether the best checkpoint is kept and its score is a validation metric."""
    return config.checkpoint.keep_best and config.checkpoint.best_by is not BestBy.REWARD
