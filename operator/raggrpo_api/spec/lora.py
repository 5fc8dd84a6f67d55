"""`spec.training.lora`: low-rank adapters that are trained instead of all parameters."""

from typing import Annotated, Final

from pydantic import Field, StringConstraints

from raggrpo_api.fields.base import ApiModel
from raggrpo_api.fields.change_class import MODEL

ALL_LINEAR: Final = "AllLinear"
"""Target for all linear layers of the model except its head."""
MAX_RANK: Final = 512
LORA_TARGET: Final = r"^[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*$"
EMBEDDINGS: Final = frozenset(
    {"embed_tokens", "embed_in", "wte", "wpe", "word_embeddings", "tok_embeddings"}
)
"""Names of embedding modules."""
HEADS: Final = frozenset({"lm_head", "embed_out", "output_layer"})
"""Names of modules that map hidden states to logits."""

LoraTarget = Annotated[str, StringConstraints(pattern=LORA_TARGET, min_length=1, max_length=128)]
"""Name of a linear layer, or the last components of its path, such as `self_attn.q_proj`."""


class LoraSpec(ApiModel):
    """Adapters of linear layers: W + (alpha / rank)·B·A, where only A and B are trained."""

    rank: Annotated[int, Field(ge=1, le=MAX_RANK), MODEL] = 32
    """Rank of the adapters: rows of A, columns of B."""
    alpha: Annotated[float, Field(ge=0.0, le=65_536.0), MODEL] = 0.0
    """Adapters are scaled by alpha / rank; 0: 2 · rank."""
    targets: Annotated[list[LoraTarget], Field(max_length=64), MODEL] = [ALL_LINEAR]
    """Linear layers with an adapter, by the last components of their paths: [q_proj, v_proj].
    [AllLinear]: all except the head."""

    @property
    def scale(self) -> float:
        """Factor of B·A: alpha / rank, or 2 if alpha is 0."""
        return self.alpha / self.rank if self.alpha else 2.0

    def is_target(self, module: str) -> bool:
        """Return whether the linear layer at this path of the model gets an adapter."""
        if self.targets == [ALL_LINEAR]:
            return module.rpartition(".")[2] not in HEADS
        return f".{module}".endswith(tuple(f".{target}" for target in self.targets))
