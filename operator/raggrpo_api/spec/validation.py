"""`spec.validation`: evaluation on held-out prompts."""

from typing import Annotated

from pydantic import Field

from raggrpo_api.fields.base import ApiModel


class ValidationSpec(ApiModel):
    """Off until asked for, never before training by default."""

    before_training: bool = False
    """Measure before the first step."""
    every_steps: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """Measure every so many steps; 0: never in between."""
    after_training: bool = False
    """Measure after the last step."""
    max_samples: Annotated[int, Field(ge=1, le=1_000_000)] = 256
    """Held-out prompts per measurement."""
    shuffled_control: bool = False
    """Measure once more with the passages of other prompts: shows that retrieval is used."""
