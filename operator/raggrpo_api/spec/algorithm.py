"""`spec.algorithm`: the GRPO loss (group size, clipping, KL penalty, importance weights).

The optimizer is in `spec.training`, sampling in `spec.rollout`.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from raggrpo_api.fields.base import ApiModel
from raggrpo_api.fields.change_class import OPTIMIZATION


class LossAggregation(StrEnum):
    """Reduction of the per-token losses to a scalar."""

    TOKEN_MEAN = "TokenMean"
    """Mean over all sampled tokens of the batch (DAPO)."""
    SEQUENCE_MEAN = "SequenceMean"
    """Mean over each completion, then over completions (GRPO)."""
    FIXED_LENGTH = "FixedLength"
    """Sum divided by completions × maxResponseLength (Dr. GRPO)."""


class AlgorithmSpec(ApiModel):
    """Hyperparameters of the GRPO loss."""

    group_size: Annotated[int, Field(ge=1, le=256), OPTIMIZATION] = 3
    """Completions per prompt whose rewards are compared with each other; equals rollout.n."""
    clip_ratio_low: Annotated[float, Field(ge=0.0, le=1.0), OPTIMIZATION] = 0.2
    """Lower clipping distance ε of the probability ratio, which is clipped at 1 - ε."""
    clip_ratio_high: Annotated[float, Field(ge=0.0, le=10.0), OPTIMIZATION] = 0.28
    """Upper clipping distance ε of the probability ratio, clipped at 1 + ε (DAPO's clip-higher)."""
    kl_coefficient: Annotated[float, Field(ge=0.0, le=10.0), OPTIMIZATION] = 0.0
    """Coefficient of the penalty KL(policy‖initial model); 0: no reference model is loaded."""
    dual_clip: Annotated[float, Field(ge=0.0, le=100.0), OPTIMIZATION] = 0.0
    """Upper bound of the ratio for negative advantages (dual clip), usually 3; 0: off."""
    normalize_by_std: Annotated[bool, OPTIMIZATION] = False
    """Divide advantages by the group's standard deviation (DeepSeekMath's GRPO)."""
    loss_aggregation: Annotated[LossAggregation, OPTIMIZATION] = LossAggregation.TOKEN_MEAN
    """Reduction of the per-token losses to a scalar."""
    importance_cap: Annotated[float, Field(ge=1.0, le=100.0), OPTIMIZATION] = 2.0
    """Upper bound of the per-token importance weight between trainer and engine."""
