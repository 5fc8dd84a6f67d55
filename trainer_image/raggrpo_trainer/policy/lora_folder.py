"""Hugging Face folders of a model with trained adapters: the merged model and the adapter alone."""

import json
from collections.abc import Callable
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from raggrpo_api.spec.lora import LoraSpec
from raggrpo_trainer.weights.export import folder_dtype, write_folder

from .lora import adapt, adapter_parameters, merged_parameters
from .model import load_model

ADAPTER = "adapter"
"""Name of the folder in peft's format within the folder of the merged model."""
_PREFIX = "base_model.model."
"""Prefix of the names of tensors in peft's format."""


def write_lora_folder(
    source: Path, folder: Path, lora: LoraSpec, load: Callable[[dict[str, Tensor]], None]
) -> None:
    """Write the merged model in the dtype of `source`, and its adapter in fp32 to `adapter`.

    `load` fills the adapters' tensors, which it gets by name, in place. The weights of the initial
    model are read from `source`, because the ranks may hold them in a smaller dtype.
    """
    dtype = folder_dtype(source)
    model = load_model(str(source), attention=None, dtype=dtype)
    targets = adapt(model, lora, seed=0)
    load(dict(adapter_parameters(model)))
    write_folder(model, merged_parameters(model, dtype), source, folder, writes=True)
    _write_adapter(model, targets, source, folder / ADAPTER, lora)


def _write_adapter(
    model: PreTrainedModel, targets: list[str], source: Path, folder: Path, lora: LoraSpec
) -> None:
    folder.mkdir()
    tensors = {
        f"{_PREFIX}{name}.weight": tensor.contiguous() for name, tensor in adapter_parameters(model)
    }
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(source),
        "r": lora.rank,
        "lora_alpha": lora.scale * lora.rank,
        "target_modules": _short_names(model, targets),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "README.md").write_text(_card(source, lora, len(targets)))


def _short_names(model: PreTrainedModel, targets: list[str]) -> list[str]:
    """Return the last components of the targets' names if they match no other module."""
    leaves = {name.rpartition(".")[2] for name in targets}
    matches = {name for name, _ in model.named_modules() if name.rpartition(".")[2] in leaves}
    return sorted(leaves) if matches == set(targets) else targets


def _card(source: Path, lora: LoraSpec, number: int) -> str:
    return f"""---
library_name: peft
base_model: {json.dumps(str(source))}
tags: [lora, grpo]
---
# LoRA adapter

Trained by RagGrpoJob with GRPO: rank {lora.rank}, alpha {lora.scale * lora.rank:g}, {number}
linear layers. The folder above has the same model with the adapter merged into its weights.

```python
from peft import PeftModel
from transformers import AutoModelForCausalLM

base = AutoModelForCausalLM.from_pretrained({str(source)!r})
model = PeftModel.from_pretrained(base, "adapter")
```
"""
