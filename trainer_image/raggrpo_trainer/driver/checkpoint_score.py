"""When a checkpoint is due, what is measured before it, and what it is judged by; pure.

The loss is none of them. GRPO's is a surrogate for the gradient: advantages are centred within
each group, so that it is near 0 for a policy that has learned nothing as for one that has learned
everything (Shao et al., "DeepSeekMath", 2024, equation 3).
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


def is_judged_by_validation(config: TrainerConfig) -> bool:
    """Return whether a validation tells the best checkpoint, which is kept."""
    return config.checkpoint.keep_best and config.checkpoint.best_by is not BestBy.REWARD


def checkpoint_due(config: TrainerConfig, step: int) -> bool:
    """Return whether a step ends with a checkpoint."""
    every = config.checkpoint.every_steps
    return step == config.training.total_steps or (every > 0 and step % every == 0)


def validation_due(config: TrainerConfig, step: int) -> str:
    """Return which validation comes before a step's checkpoint: during, after or none.

    After the last step the checkpoint comes first, unless validations judge it.
    """
    every = config.validation.every_steps
    is_due = "during" if every and step % every == 0 else ""
    if step < config.training.total_steps:
        return is_due
    if not is_judged_by_validation(config):
        return ""
    return "after" if config.validation.after_training else is_due
