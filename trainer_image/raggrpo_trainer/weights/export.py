"""Full tensors of a sharded model: a stream for the engines, or a Hugging Face folder.

All functions are collective and must not change the model.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

_COPIED_SUFFIXES = {".json", ".txt", ".model", ".jinja", ".tiktoken", ".py"}


def full_parameters(model: PreTrainedModel, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, full tensor) of one parameter at a time; tied parameters appear once."""
    for name, parameter in model.named_parameters():
        shard = parameter.detach().to(dtype)
        yield name, shard.full_tensor() if isinstance(shard, DTensor) else shard


def checkpoint_tensors(model: PreTrainedModel, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, full tensor) with the names and shapes of Hugging Face checkpoints.

    Transformers stacks a mixture's experts in one tensor; a checkpoint has one tensor per expert.
    """
    for name, tensor in full_parameters(model, dtype):
        for saved_name, saved in revert_weight_conversion(model, {name: tensor}).items():
            yield saved_name, saved.contiguous()


def write_folder(model: PreTrainedModel, source: Path, folder: Path, *, writes: bool) -> None:
    """Write the model's safetensors and config, and copy all other files from `source`.

    The tensors have the data type of `source`. Only a rank with `writes` copies them to the host.
    """
    dtype = AutoConfig.from_pretrained(source, trust_remote_code=False).dtype or torch.float32
    weights = {}
    for name, tensor in full_parameters(model, dtype):
        if writes:
            weights[name] = tensor.cpu()
    if not writes:
        return
    model.save_pretrained(folder, state_dict=weights)
    for file in source.iterdir():
        is_index = file.name.endswith(".index.json")
        target = folder / file.name
        if file.suffix in _COPIED_SUFFIXES and not is_index and not target.exists():
            shutil.copyfile(file, target)
