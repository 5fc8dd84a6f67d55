"""Check whether a model can be trained with adapters. Needs no weights, no GPU and no Ray.

The targets are those of the model at full size, built without memory. A small random model of the
same architecture shows that adapters take part in its forward and backward pass.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_parameter_registration_hook as register_hook
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from raggrpo_api.model_folder import UnsafeModel
from raggrpo_api.spec.lora import LoraSpec
from raggrpo_api.tensor_limit import limited_tensors

from .lora import UnsupportedLora, adapt, lora_targets, merged_parameters
from .small_model import VOCABULARY, NotSmall, small_model

MAX_NATS = 2e-4
"""Limit of the logprob difference between adapters and merged weights, in nats."""
_TOKENS = 64
_NUM_RESERVED = 3
"""Number of lowest token ids to exclude, because they may be special tokens."""


@dataclass(frozen=True, slots=True)
class LoraResult:
    """Size of the layers with adapters, or the reason why the model cannot be trained with them."""

    problem: str = ""
    """Reason why the model cannot be trained with these adapters, or ""."""
    layers: int = 0
    """Number of layers with an adapter."""
    adapted_parameters: int = 0
    """Number of parameters of these layers."""
    parameters: int = 0
    """Number of parameters of the model."""


def check_lora(config: PreTrainedConfig, lora: LoraSpec) -> LoraResult:
    """Return the size of the targets, after training adapters of a small model for one step."""
    try:
        with limited_tensors(register_hook, Path(config.name_or_path)), torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        targets = lora_targets(model, lora)
        problem = adapter_problem(small_model(config), small_model(config), lora)
    except (UnsupportedLora, NotSmall, UnsafeModel) as error:
        return LoraResult(str(error))
    return LoraResult(
        problem,
        len(targets),
        sum(each.weight.numel() for each in targets.values()),
        sum(each.numel() for each in model.parameters()),
    )


def adapter_problem(adapted: PreTrainedModel, plain: PreTrainedModel, lora: LoraSpec) -> str:
    """Train adapters of a small model for one step; return the problem, or "".

    Every adapter must receive a gradient, unless its layer belongs to one of several experts, and
    the `plain` model with merged weights must give the adapted model's logprobs. Raises
    UnsupportedLora.
    """
    adapt(adapted, lora.model_copy(update={"rank": 2, "alpha": 2.0}), seed=0)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in adapted.named_parameters():
        if name.endswith(".lora_B"):
            parameter.data.normal_(std=0.1, generator=generator)
    logprobs = _logprobs(adapted)
    (logprobs * torch.randn(logprobs.shape, generator=generator)).sum().backward()  # type: ignore[no-untyped-call]
    unused = [
        name
        for name, parameter in adapted.named_parameters()
        if parameter.requires_grad
        and ".experts." not in name
        and (parameter.grad is None or not parameter.grad.any())
    ]
    if unused:
        layer = unused[0].rpartition(".")[0]
        leaf = layer.rpartition(".")[2]
        return (
            f"the adapter of {layer} receives no gradient; leave {leaf} out of "
            "training.lora.targets"
        )
    plain.load_state_dict(dict(merged_parameters(adapted, torch.float32)), strict=False)
    with torch.no_grad():
        nats = float((_logprobs(plain) - logprobs).abs().max())
    if not nats <= MAX_NATS:
        return f"merged weights change its logprobs by {nats:.2g} nats"
    return ""


def _logprobs(model: PreTrainedModel) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(_NUM_RESERVED, VOCABULARY, (1, _TOKENS), generator=generator)
    logits: Tensor = model(input_ids=ids, use_cache=False).logits
    return logits.float().log_softmax(-1)


def main(path: str, lora: str, write: Callable[[str], object] = sys.stdout.write) -> None:
    """Check the model in a folder and write the result as one line of JSON."""
    torch.set_num_threads(1)
    config = AutoConfig.from_pretrained(path, trust_remote_code=False)
    result = check_lora(config, LoraSpec.model_validate_json(lora))
    write(json.dumps(asdict(result)) + "\n")
