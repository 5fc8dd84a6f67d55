"""`spec.algorithm`: the objective."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from raggrpo_api.fields.base import ApiModel


class LossAggregation(StrEnum):
    """How per-token losses become one number."""

    TOKEN_MEAN = "TokenMean"
    """Sum over all sampled tokens of the batch divided by their number (DAPO)."""
    SEQUENCE_MEAN = "SequenceMean"
    """Mean over each completion, then over completions (GRPO)."""
    FIXED_LENGTH = "FixedLength"
    """Sum divided by completions × maxResponseLength (Dr. GRPO)."""


class AlgorithmSpec(ApiModel):
    """GRPO's group size, clipping, KL and importance sampling."""

    group_size: Annotated[int, Field(ge=1, le=256)] = 3
    """Completions per prompt that share one baseline; equals rollout.n."""
    clip_ratio_low: Annotated[float, Field(ge=0.0, le=1.0)] = 0.2
    """Lower clip distance of the probability ratio."""
    clip_ratio_high: Annotated[float, Field(ge=0.0, le=10.0)] = 0.28
    """Upper clip distance of the probability ratio (DAPO's clip-higher)."""
    kl_coefficient: Annotated[float, Field(ge=0.0, le=10.0)] = 0.0
    """Weight of the penalty of KL(policy‖starting model); 0 keeps no reference model."""
    dual_clip: Annotated[float, Field(ge=0.0, le=100.0)] = 0.0
    """Largest ratio that counts where the advantage is negative, usually 3; 0: off."""
    normalize_by_std: bool = False
    """Divide advantages by the group's standard deviation (DeepSeekMath's GRPO)."""
    loss_aggregation: LossAggregation = LossAggregation.TOKEN_MEAN
    """How per-token losses become one number."""
    importance_cap: Annotated[float, Field(ge=1.0, le=100.0)] = 2.0
    """Cap of the truncated importance weight trainer/rollout per token."""
