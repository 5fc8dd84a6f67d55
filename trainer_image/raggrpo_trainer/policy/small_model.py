"""A small random model of the same architecture: same code, layer types and LM head.

Only the sizes in the configuration are reduced. Enough layers remain for each layer type to occur.
The weights are larger than usual, so that errors of a layer are visible in the output.
"""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook as register_hook
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from raggrpo_api.model_folder import UnsafeModel
from raggrpo_api.tensor_limit import limited_tensors

VOCABULARY = 128
MAX_PARAMETERS = 60_000_000
"""Maximum number of parameters; exceeded if a configured size has an unknown name."""
_MIN_LAYERS = 2
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
"""Fields with the number of first layers whose type differs from that of later layers."""
_SPECIAL_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id")


class NotSmall(Exception):
    """No small model of this architecture can be built; the message has the reason."""


def small_model(config: PreTrainedConfig, *, attention: str | None = None) -> PreTrainedModel:
    """Build the small model in fp32 on the CPU, in eval mode, with deterministic weights.

    Raises NotSmall if the model cannot be built, is larger than MAX_PARAMETERS or has too many
    tensors.
    """
    try:
        small = small_config(config)
        with limited_tensors(register_hook, Path(config.name_or_path)), torch.device("meta"):
            size = sum(p.numel() for p in AutoModelForCausalLM.from_config(small).parameters())
        if size > MAX_PARAMETERS:
            raise NotSmall(
                f"its small test copy would have {size:,} parameters (limit {MAX_PARAMETERS:,})"
            )
        torch.manual_seed(0)
        options = {} if attention is None else {"attn_implementation": attention}
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            small, dtype=torch.float32, **options
        )
    except NotSmall:
        raise
    except UnsafeModel as error:
        raise NotSmall(str(error)) from error
    except Exception as error:  # models raise various errors for unexpected sizes
        raise NotSmall(f"{type(error).__name__}: {error}") from error
    _strengthen(model)
    return model.eval()


def small_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """Return a copy of the configuration with all known sizes reduced."""
    small = copy.deepcopy(config)
    for each in _configs(small):
        _reduce(each)
    return small


def _configs(config: PreTrainedConfig) -> Iterator[PreTrainedConfig]:
    yield config
    for name, value in vars(config).items():
        if isinstance(value, PreTrainedConfig):
            yield from _configs(value)
        elif isinstance(value, dict):
            reduced = {
                key: min(size, _SIZES.get(key, size)) if type(size) is int else size
                for key, size in value.items()
            }
            setattr(config, name, reduced)


def _reduce(config: PreTrainedConfig) -> None:
    num_heads = next(
        (_number(config, n) for n in ("num_attention_heads", "n_head", "n_heads")), None
    )
    layers = _layers_needed(config)
    for name, size in _SIZES.items():
        value = _number(config, name) or 0
        if value > size or (value and size == VOCABULARY):  # token ids are drawn from VOCABULARY
            setattr(config, name, size)
    if _number(config, "expand") and _number(config, "num_heads"):  # Mamba 2 has no attention heads
        config.num_heads = config.expand * config.hidden_size // config.head_dim
    if _number(config, "mamba_d_ssm"):
        config.mamba_d_head = config.mamba_d_ssm // config.mamba_n_heads
    for name in _KEY_VALUE_HEADS:
        num_kv_heads = _number(config, name)
        if num_kv_heads and num_kv_heads > 2:
            setattr(config, name, 4 if num_kv_heads == num_heads else 2)
    for name in _LAYER_COUNTS:
        num_layers = _number(config, name)
        if num_layers and num_layers > layers:
            for key, value in _per_layer(config, num_layers):
                setattr(config, key, value[:layers])
            setattr(config, name, layers)
    if overrides := config.to_dict().get("per_layer_config"):
        reduced = {
            int(layer): {name: min(value, _SIZES.get(name, value)) for name, value in each.items()}
            for layer, each in overrides.items()
        }
        # Use setattr: transformers' type annotation does not permit these values.
        setattr(config, "per_layer_config", None)  # noqa: B010
        remaining = {layer: each for layer, each in reduced.items() if layer < layers}
        setattr(config, "per_layer_config", remaining)  # noqa: B010
    for name in _SPECIAL_TOKENS:
        token_id = getattr(config, name, None)
        if isinstance(token_id, list) or (isinstance(token_id, int) and token_id >= VOCABULARY):
            setattr(config, name, _SPECIAL_TOKENS.index(name))


def _layers_needed(config: PreTrainedConfig) -> int:
    """Return the smallest number of first layers in which every layer type occurs."""
    needed = _MIN_LAYERS
    for name in _PERIODS:
        needed = max(needed, _number(config, name) or 0)
    for name in _DENSE_FIRST:
        needed = max(needed, (_number(config, name) or 0) + 1)
    for name, value in vars(config).items():  # indices of the layers of one type
        is_index_list = name.endswith(("_indices", "_idxs", "_layers", "_layer_ids"))
        if is_index_list and isinstance(value, list) and value and type(value[0]) is int:
            needed = max(needed, min(value) + 1)
    for name in _LAYER_COUNTS:
        for _, values in _per_layer(config, _number(config, name) or -1):
            kinds = [str(value) for value in values]
            needed = max(needed, *(kinds.index(kind) + 1 for kind in kinds))
    return needed


def _per_layer(config: PreTrainedConfig, layers: int) -> list[tuple[str, Any]]:
    """Return the names and values of the fields with one entry per layer."""
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
    except Exception:  # some properties use missing fields
        return None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


@torch.no_grad()
def _strengthen(model: PreTrainedModel) -> None:
    """Give matrices unit gain and vectors some noise; zeros would hide the values they scale."""
    for parameter in model.parameters():
        if parameter.ndim >= 2:
            parameter.normal_(std=parameter.shape[-1] ** -0.5)
        else:
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
