"""`spec.model`: which model is trained and how it computes attention."""

from enum import StrEnum

from raggrpo_api.fields.base import AbsolutePath, ApiModel


class Attention(StrEnum):
    """How attention is computed; `Auto` takes the best that is installed."""

    AUTO = "Auto"
    SDPA = "Sdpa"
    FLASH = "Flash"
    EAGER = "Eager"


class ModelSpec(ApiModel):
    """The policy's starting point."""

    path: AbsolutePath
    """Folder of a Hugging Face model (config.json, safetensors, tokenizer)."""
    attention: Attention = Attention.AUTO
    """Attention implementation of the trainer; what Auto chose is pinned in status."""
