"""Properties of model families that can be read from config.json. Pure.

The row layout of a family is determined by an experiment with a small copy of the model (the
trainer's `layout_check`). MEASURED_ARCHITECTURES do not need it; docs/reference/models.md lists
the measurements.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

MEASURED_ARCHITECTURES: Final = frozenset(
    {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}
)
"""Architectures that train exactly with shared-prefix rows, unless they have attention windows."""
ATTENTION_LAYERS: Final = frozenset({"full_attention", "sliding_attention", "attention"})
"""Values of `layer_types` for layers without recurrent state."""
_WINDOWS: Final = (
    "sliding_window", "attention_chunk_size", "attention_window_size", "window_size", "index_topk",
    "local_attention_window",
)  # fmt: skip
_EXPERTS: Final = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_LENGTH_DEPENDENT_ROPE: Final = frozenset({"dynamic", "longrope", "su"})
"""Types of rotary embeddings whose angles depend on the longest row of a batch."""
_ROPE_TYPES: Final = _LENGTH_DEPENDENT_ROPE | {"default", "linear", "yarn", "llama3"}
"""Types of rotary embeddings that both transformers and vLLM implement."""


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """Properties that training depends on, as read from a model's config.json."""

    architecture: str
    """Class name in transformers and vLLM, or ""."""
    window: int | None
    """Smallest attention window of a layer in tokens; None: unlimited."""
    state_layers: tuple[str, ...]
    """Types of layers with recurrent state, sorted."""
    num_experts: int
    """Number of experts; 0 for a dense model."""
    positions_change_at: int | None
    """Row length above which a row changes the rotary positions of other rows; None: never."""
    is_measured: bool
    """Whether measurements of the model's family apply to this configuration."""
    activation: str
    """Activation function of the MLPs, or ""."""
    head_size: int
    """Size of an attention head; 0 if not uniform, as with latent attention."""


def model_family(config: Mapping[str, Any]) -> ModelFamily:
    """Return the properties of the model with this config.json."""
    text = config.get("text_config")
    text = text if isinstance(text, Mapping) else config
    named = config.get("architectures")
    first = named[0] if isinstance(named, list) and named else ""
    kinds = text.get("layer_types")
    return ModelFamily(
        architecture=first if isinstance(first, str) else "",
        window=min(_windows(text), default=None),
        state_layers=tuple(sorted(_kinds(kinds) - ATTENTION_LAYERS)),
        num_experts=max((number for name in _EXPERTS if (number := _int(text, name))), default=0),
        positions_change_at=_positions_change_at(text),
        is_measured=_is_own_type(first, config) and _rope_type(text) in _ROPE_TYPES,
        activation=str(text.get("hidden_act") or ""),
        head_size=_head_size(text),
    )


def _is_own_type(architecture: object, config: Mapping[str, Any]) -> bool:
    """Return whether model_type, which specifies the class of the configuration, fits."""
    return config.get("model_type") == str(architecture).removesuffix("ForCausalLM").lower()


def _windows(config: Mapping[str, Any]) -> Iterator[int]:
    if config.get("use_sliding_window") is False:  # Qwen's config.json has an unused window
        return
    kinds = _kinds(config.get("layer_types"))
    for name in _WINDOWS:
        has_none = name == "sliding_window" and kinds and "sliding_attention" not in kinds
        if (size := _int(config, name)) and not has_none:
            yield size


def _positions_change_at(config: Mapping[str, Any]) -> int | None:
    if _rope_type(config) not in _LENGTH_DEPENDENT_ROPE:
        return None
    rope = _rope(config)
    name = "original_max_position_embeddings"
    return _int(rope, name) or _int(config, name) or _int(config, "max_position_embeddings") or 0


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return rope if isinstance(rope, Mapping) else {"rope_type": str(rope)}


def _rope_type(config: Mapping[str, Any]) -> str:
    rope = _rope(config)
    return str(rope.get("rope_type", rope.get("type", "default")))


def _head_size(config: Mapping[str, Any]) -> int:
    if _int(config, "kv_lora_rank") or _int(config, "global_head_dim"):
        return 0
    heads = _int(config, "num_attention_heads")
    return _int(config, "head_dim") or (_int(config, "hidden_size") // heads if heads else 0)


def _kinds(layers: object) -> frozenset[str]:
    return frozenset(map(str, layers)) if isinstance(layers, list) else frozenset()


def _int(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
