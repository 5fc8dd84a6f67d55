"""Full tensors of a sharded model: a stream for the engines, or a Hugging Face folder.

All functions are collective and must not change the model. `parameters` yields (name, full tensor)
of one parameter at a time; tied parameters appear once.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from raggrpo_api.fields.text import one_line
from raggrpo_api.foreign_files import UnsuitableFile, read_limited, require_below
from raggrpo_api.model_folder import (
    TEMPLATES,
    UnsafeModel,
    is_weight_file,
    loaded_files,
    max_bytes,
)
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.errors import TrainerError

MAX_PROBLEM = 500
"""Characters of an error of transformers in a message."""
_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
Parameters = Iterable[tuple[str, Tensor]]


def full_tensor(parameter: Tensor, dtype: torch.dtype) -> Tensor:
    """Return all shards of a parameter, without gradient."""
    shard = parameter.detach().to(dtype)
    return shard.full_tensor() if isinstance(shard, DTensor) else shard


def checkpoint_tensors(
    model: PreTrainedModel, parameters: Parameters
) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, full tensor) with the names and shapes of Hugging Face checkpoints.

    Transformers stacks a mixture's experts in one tensor; a checkpoint has one tensor per expert.
    """
    for name, tensor in parameters:
        for saved_name, saved in revert_weight_conversion(model, {name: tensor}).items():
            yield saved_name, saved.contiguous()


@contextmanager
def reported(folder: str | Path) -> Iterator[None]:
    """Raise TrainerError PREFLIGHT_FAILED if a model folder is unsafe, or transformers fails on it.

    Errors of transformers have many types: a damaged file can fail anywhere.
    """
    try:
        yield
    except (MemoryError, OSError, torch.OutOfMemoryError, TrainerError):
        raise
    except UnsafeModel as error:
        raise TrainerError(ExitCode.PREFLIGHT_FAILED, str(error)) from error
    except Exception as error:
        problem = one_line(f"{type(error).__name__}: {error}", MAX_PROBLEM)
        raise TrainerError(
            ExitCode.PREFLIGHT_FAILED,
            f"transformers cannot load the model in {folder}: {problem}; use an intact copy",
        ) from error


def folder_dtype(source: Path) -> torch.dtype:
    """Return the data type that the config of a Hugging Face folder specifies.

    Raises TrainerError PREFLIGHT_FAILED if it cannot be read, or cannot hold trained weights.
    """
    with reported(source):
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
    dtype: torch.dtype = config.dtype or torch.float32
    if dtype not in _DTYPES:
        raise TrainerError(
            ExitCode.PREFLIGHT_FAILED,
            f"{source}/config.json: dtype is {dtype}, which cannot hold trained weights; use "
            "float32 or bfloat16",
        )
    return dtype


def write_folder(
    model: PreTrainedModel, parameters: Parameters, source: Path, folder: Path, *, writes: bool
) -> None:
    """Write the model's safetensors and config, and copy all other files from `source`.

    Only a rank with `writes` copies the parameters to the host. Raises TrainerError NON_FINITE if
    they contain NaN or infinity.
    """
    weights = {}
    for name, tensor in parameters:
        if writes:
            weights[name] = tensor.cpu()
    if not writes:
        return
    # Checked last: the other ranks wait for all parameters.
    if broken := [name for name, tensor in weights.items() if not tensor.isfinite().all()]:
        raise TrainerError(
            ExitCode.NON_FINITE,
            f"the trained weights are not exported: tensor {broken[0]} contains NaN or infinity; "
            "export an earlier checkpoint",
        )
    model.save_pretrained(folder, state_dict=weights)
    for file in _settings(source):
        target = folder / file.relative_to(source)
        target.parent.mkdir(exist_ok=True)
        if not target.exists():
            target.write_bytes(_content(file, source))


def _settings(source: Path) -> list[Path]:
    """Return the files of a model except its weights, including its code and chat templates."""
    with reported(source):
        loaded = [each for each in loaded_files(source) if not is_weight_file(each)]
    own = [each for each in loaded if each.parent in (source, source / TEMPLATES)]
    settings = [each for each in own if not each.name.endswith(".index.json")]
    return settings + sorted(source.glob("[!.]*.py"))


def _content(file: Path, source: Path) -> bytes:
    """Return the content of a file of a model folder, which others may write to."""
    try:
        require_below(file, source)
        return read_limited(file, max_bytes(file.name))
    except UnsuitableFile as error:
        raise UnsuitableFile(f"{file} cannot be copied: {error.strerror}") from error
