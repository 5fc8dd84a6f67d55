"""Translation of verl's settings of low-rank adapters, for FSDP and for Megatron. Pure."""

import re
from collections.abc import Iterator
from typing import Any, Final

from raggrpo_api.spec.lora import ALL_LINEAR, EMBEDDINGS, HEADS, LORA_TARGET, MAX_RANK

from .translation import MODEL, Translation

MEGATRON: Final = {
    "linear_qkv": ("q_proj", "k_proj", "v_proj"),
    "linear_proj": ("o_proj",),
    "linear_fc1": ("gate_proj", "up_proj"),
    "linear_fc2": ("down_proj",),
}
"""Linear layers of Megatron, and those of transformers that they combine."""
UNSUPPORTED: Final = {
    "dropout": "adapters have no dropout",
    "exclude_modules": "name the layers with adapters in training.lora.targets",
    "lora_adapter_path": "adapters start at zero; merge the adapter into the model",
    "adapter_path": "adapters start at zero; merge the adapter into the model",
    "target_parameters": "only linear layers can have adapters",
}
"""Settings without a counterpart that change the result, and what to do."""


def map_lora(this: Translation) -> None:
    """Map the adapters, if their rank is above 0; report settings that change the result."""
    rank_field = next(filter(this.get, (f"{MODEL}lora_rank", f"{MODEL}lora.rank")), "")
    if not rank_field:
        return
    megatron = rank_field.endswith(".rank")
    prefix = f"{MODEL}lora." if megatron else MODEL
    rank = this.get(rank_field)
    if rank > MAX_RANK:
        this.report_error(rank_field, f"{rank} is above {MAX_RANK}: changed to {MAX_RANK}")
    this.put(rank_field, min(rank, MAX_RANK))
    this.copy(f"{prefix}alpha" if megatron else f"{prefix}lora_alpha")
    name = f"{prefix}target_modules"
    if name in this.given:
        this.put(name, _targets(this, name))
    for setting, remedy in UNSUPPORTED.items():
        if value := this.given.get(f"{prefix}{setting}"):
            this.report_error(f"{prefix}{setting}", f"{value} is not supported: {remedy}")


def _targets(this: Translation, name: str) -> list[str]:
    """Return the layers with adapters; report those that cannot have one."""
    given = this.given[name]
    listed = given if isinstance(given, list) else [given]
    targets = list(dict.fromkeys(_translated(this, name, listed)))
    return targets or [ALL_LINEAR]


def _translated(this: Translation, name: str, listed: list[Any]) -> Iterator[str]:
    if set(map(str, listed)) >= MEGATRON.keys() or "all-linear" in map(str, listed):
        return
    for target in map(str, listed):
        if target.rpartition(".")[2] in EMBEDDINGS | HEADS:
            this.report_error(name, f"{target} cannot have an adapter: it is left out")
        elif target in MEGATRON:
            yield from MEGATRON[target]
        elif re.fullmatch(LORA_TARGET, target):
            yield target
        else:
            this.report_error(
                name, f"{target} is not the name of a layer, such as q_proj: it is left out"
            )
