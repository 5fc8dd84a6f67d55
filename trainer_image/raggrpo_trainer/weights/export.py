"""Full weights of a sharded model: as a stream for the engines, or as a Hugging Face folder.

Collective on all ranks; must not change the model.
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
    """Yield (name, full tensor) one parameter at a time; a shared parameter appears once."""
    for name, parameter in model.named_parameters():
        shard = parameter.detach().to(dtype)
        yield name, shard.full_tensor() if isinstance(shard, DTensor) else shard


def checkpoint_tensors(model: PreTrainedModel, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Yield the same under the names of published checkpoints, which the engines read.

    Transformers holds a mixture's experts as one tensor; in a checkpoint each has its own.
    """
    for name, tensor in full_parameters(model, dtype):
        for published, part in revert_weight_conversion(model, {name: tensor}).items():
            yield published, part.contiguous()


def write_folder(model: PreTrainedModel, source: Path, folder: Path, *, writes: bool) -> None:
    """Write the model's safetensors and config, and copy everything else from the source folder.

    The data type is the source's. Only the rank that `writes` keeps the tensors, on the host.
    """
    dtype = AutoConfig.from_pretrained(source).dtype or torch.float32
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
