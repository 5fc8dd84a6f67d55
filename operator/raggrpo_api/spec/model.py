"""`spec.model`: model folder and attention implementation."""

from enum import StrEnum
from typing import Annotated

from raggrpo_api.fields.base import ApiModel, OptionalPath
from raggrpo_api.fields.change_class import OPERATIONAL
from raggrpo_api.fields.reach import Server
from raggrpo_api.fields.source import ModelUrl


class Attention(StrEnum):
    """Attention implementation; `Auto` selects the fastest one that is installed."""

    AUTO = "Auto"
    SDPA = "Sdpa"
    FLASH = "Flash"
    EAGER = "Eager"


class ModelSpec(ApiModel):
    """Initial model of the policy."""

    path: Annotated[OptionalPath, OPERATIONAL] = ""
    """Folder of a Hugging Face model: config.json, safetensors and tokenizer. It may move, but
    checkpoints depend on its content."""
    source: Annotated[ModelUrl | None, Server(), OPERATIONAL] = None
    """URL to download the model from, such as `hf://org/name@revision`, instead of path."""
    attention: Annotated[Attention, OPERATIONAL] = Attention.AUTO
    """Attention implementation of the trainer; the choice of Auto is stored in status.pinned."""
