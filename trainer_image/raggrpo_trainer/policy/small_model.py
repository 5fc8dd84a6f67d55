"""A small random model of the same kind as a real one: same code, layer types and head.

Every size in the configuration is cut, nothing else. Enough layers stay that each kind of layer
occurs. The weights are larger than usual, so that what a layer does wrong is seen in the output.
"""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

VOCABULARY = 128
MAX_PARAMETERS = 60_000_000
"""Of a small model; one that is larger because a size has a name of its own is not built."""
_LEAST_LAYERS = 2
_SIZES: dict[str, int] = {
    "vocab_size": VOCABULARY,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size": 64,
    "n_embd": 64,
    "d_model": 64,
    "dim": 64,
    "embedding_dim": 64,
    "embedding_size": 64,
    "word_embed_proj_dim": 64,
    "hidden_size_per_layer_input": 16,
    "intermediate_size": 96,
    "intermediate_size_mlp": 96,
    "n_inner": 96,
    "ffn_dim": 96,
    "d_ff": 96,
    "ffn_hidden_size": 96,
    "shared_intermediate_size": 96,
    "moe_intermediate_size": 32,
    "expert_ffn_hidden_size": 32,
    "moe_shared_expert_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "moe_latent_size": 32,
    "num_attention_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "num_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_attention_heads": 4,
    "head_dim": 16,
    "global_head_dim": 16,
    "attention_head_dim": 32,
    "d_kv": 16,
    "kv_channels": 16,
    "rotary_dim": 8,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "o_lora_rank": 16,
    "num_experts": 4,
    "n_routed_experts": 4,
    "num_local_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "num_experts_per_token": 2,
    "moe_topk": 2,
    "moe_k": 2,
    "top_k_experts": 2,
    "n_group": 1,
    "topk_group": 1,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "n_mamba_heads": 8,
    "mamba_headdim": 16,
    "mamba_n_heads": 8,
    "mamba_num_heads": 8,
    "mamba_d_head": 16,
    "mamba_head_dim": 16,
    "mamba_d_ssm": 128,
    "mamba_d_state": 16,
    "mamba_n_groups": 1,
    "mamba_dt_rank": 8,
    "time_step_rank": 8,
    "ssm_state_size": 16,
    "state_size": 16,
    "n_groups": 1,
    "attention_hidden_size": 128,
    "lru_width": 64,
    "block_dim": 64,
    "block_ff_dim": 96,
    "max_position_embeddings": 512,
    "n_positions": 512,
    "index_n_heads": 2,
    "index_head_dim": 16,
}
_KEY_VALUE_HEADS = (
    "num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num",
    "num_global_key_value_heads",
)  # fmt: skip
_LAYER_COUNTS = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers",
)  # fmt: skip
_PERIODS = (
    "full_attention_interval", "attn_layer_period", "expert_layer_period", "sliding_window_pattern",
    "layer_group_size", "full_attn_every_n_layers", "no_rope_layer_interval", "moe_layer_interval",
    "moe_layer_freq", "global_attn_every_n_layers", "interleave_moe_layer_step",
    "decoder_sparse_step",
)  # fmt: skip
_DENSE_FIRST = ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index")
"""Fields that count the layers before those of another kind."""
_SPECIAL_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id")


class NotSmall(Exception):
    """No small model of this kind can be built; the message says what transformers answered."""


def small_model(config: PreTrainedConfig, *, attention: str | None = None) -> PreTrainedModel:
    """Build the small model in fp32 on the CPU, in evaluation mode, always with the same weights.

    Raises NotSmall.
    """
    try:
        small = small_config(config)
        with torch.device("meta"):
            size = sum(p.numel() for p in AutoModelForCausalLM.from_config(small).parameters())
        if size > MAX_PARAMETERS:
            raise NotSmall(f"its small copy would have {size:,} parameters")
        torch.manual_seed(0)
        given = {} if attention is None else {"attn_implementation": attention}
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            small, dtype=torch.float32, **given
        )
    except NotSmall:
        raise
    except Exception as error:  # each model's code raises what it likes for sizes it did not expect
        raise NotSmall(f"{type(error).__name__}: {error}") from error
    _strengthen(model)
    return model.eval()


def small_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """Return a copy of the configuration with every known size cut."""
    small = copy.deepcopy(config)
    for part in _parts(small):
        _cut(part)
    return small


def _parts(config: PreTrainedConfig) -> Iterator[PreTrainedConfig]:
    yield config
    for name, value in vars(config).items():
        if isinstance(value, PreTrainedConfig):
            yield from _parts(value)
        elif isinstance(value, dict):
            cut = {
                key: min(size, _SIZES.get(key, size)) if type(size) is int else size
                for key, size in value.items()
            }
            setattr(config, name, cut)


def _cut(config: PreTrainedConfig) -> None:
    heads = next((_number(config, n) for n in ("num_attention_heads", "n_head", "n_heads")), None)
    layers = _layers_needed(config)
    for name, size in _SIZES.items():
        value = _number(config, name) or 0
        if value > size or (value and size == VOCABULARY):  # tokens are drawn from all of it
            setattr(config, name, size)
    if _number(config, "expand") and _number(config, "num_heads"):  # Mamba 2 has no other heads
        config.num_heads = config.expand * config.hidden_size // config.head_dim
    if _number(config, "mamba_d_ssm"):
        config.mamba_d_head = config.mamba_d_ssm // config.mamba_n_heads
    for name in _KEY_VALUE_HEADS:
        given = _number(config, name)
        if given and given > 2:
            setattr(config, name, 4 if given == heads else 2)
    for name in _LAYER_COUNTS:
        given = _number(config, name)
        if given and given > layers:
            for key, value in _per_layer(config, given):
                setattr(config, key, value[:layers])
            setattr(config, name, layers)
    if overrides := config.to_dict().get("per_layer_config"):
        cut = {
            int(layer): {name: min(value, _SIZES.get(name, value)) for name, value in each.items()}
            for layer, each in overrides.items()
        }
        # Set by name: transformers' own type of it is not what may be set.
        setattr(config, "per_layer_config", None)  # noqa: B010
        kept = {at: each for at, each in cut.items() if at < layers}
        setattr(config, "per_layer_config", kept)  # noqa: B010
    for name in _SPECIAL_TOKENS:
        given = getattr(config, name, None)
        if isinstance(given, list) or (isinstance(given, int) and given >= VOCABULARY):
            setattr(config, name, _SPECIAL_TOKENS.index(name))


def _layers_needed(config: PreTrainedConfig) -> int:
    """Return the shortest prefix of the layers in which every kind occurs."""
    needed = _LEAST_LAYERS
    for name in _PERIODS:
        needed = max(needed, _number(config, name) or 0)
    for name in _DENSE_FIRST:
        needed = max(needed, (_number(config, name) or 0) + 1)
    for name, value in vars(config).items():  # the layers of a kind by their numbers
        by_number = name.endswith(("_indices", "_idxs", "_layers", "_layer_ids"))
        if by_number and isinstance(value, list) and value and type(value[0]) is int:
            needed = max(needed, min(value) + 1)
    for name in _LAYER_COUNTS:
        for _, values in _per_layer(config, _number(config, name) or -1):
            kinds = [str(value) for value in values]
            needed = max(needed, *(kinds.index(kind) + 1 for kind in kinds))
    return needed


def _per_layer(config: PreTrainedConfig, layers: int) -> list[tuple[str, Any]]:
    """Return the fields that hold one entry per layer."""
    return [
        (name, value)
        for name, value in vars(config).items()
        if isinstance(value, list | tuple | str)
        and len(value) == layers
        and name != "architectures"
    ]


def _number(config: PreTrainedConfig, name: str) -> int | None:
    try:
        value = getattr(config, name, None)
    except Exception:  # some names are properties that compute from what others lack
        return None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


@torch.no_grad()
def _strengthen(model: PreTrainedModel) -> None:
    """Give every matrix unit gain and every vector some noise; zeros would hide what they scale."""
    for parameter in model.parameters():
        if parameter.ndim >= 2:
            parameter.normal_(std=parameter.shape[-1] ** -0.5)
        else:
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
