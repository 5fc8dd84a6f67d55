"""`spec.validation`: evaluation on held-out prompts."""

from typing import Annotated

from pydantic import Field

from raggrpo_api.fields.base import ApiModel


class ValidationSpec(ApiModel):
    """Evaluation on held-out prompts; off by default."""

    before_training: bool = False
    """Evaluate before the first step."""
    every_steps: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """Steps between evaluations; 0: none during training."""
    after_training: bool = False
    """Evaluate after the last step."""
    max_samples: Annotated[int, Field(ge=1, le=1_000_000)] = 256
    """Maximum held-out prompts per evaluation."""
    shuffled_control: bool = False
    """Evaluate again with the passages of other prompts, to show that retrieval is used."""
