"""`spec.model`: model folder and attention implementation."""

from enum import StrEnum
from typing import Annotated

from raggrpo_api.fields.base import AbsolutePath, ApiModel
from raggrpo_api.fields.change_class import OPERATIONAL


class Attention(StrEnum):
    """Attention implementation; `Auto` selects the fastest one that is installed."""

    AUTO = "Auto"
    SDPA = "Sdpa"
    FLASH = "Flash"
    EAGER = "Eager"


class ModelSpec(ApiModel):
    """Initial model of the policy."""

    path: Annotated[AbsolutePath, OPERATIONAL]
    """Folder of a Hugging Face model: config.json, safetensors and tokenizer. It may move, but
    checkpoints depend on its content."""
    attention: Annotated[Attention, OPERATIONAL] = Attention.AUTO
    """Attention implementation of the trainer; the choice of Auto is stored in status.pinned."""
