"""Low-rank adapters of linear layers (Hu et al., "LoRA", 2021): W + scale·B·A with a frozen W.

    adapt(causal_lm, training.lora, seed=0)        # before the model is sharded
    with adapters_off(causal_lm): ...              # exactly the initial model
    for name, tensor in merged_parameters(causal_lm, torch.bfloat16): ...

The forward pass and the export compute the merged weight with one expression in one dtype. In BF16,
trainer and engine would otherwise round differently.
"""

import hashlib
import inspect
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel

from raggrpo_api.spec.lora import ALL_LINEAR, LoraSpec
from raggrpo_trainer.weights.export import full_tensor

from .layers import decoder_layers

ADAPTER_SUFFIXES = (".lora_A", ".lora_B")
"""Ends of the names of adapter parameters."""
_MAX_LISTED = 12


class UnsupportedLora(ValueError):
    """The adapters of the job do not fit the model; the message has the reason and the remedy."""


class LoraLinear(nn.Linear):
    """A frozen linear layer with an adapter; `adapt` turns an `nn.Linear` into one in place."""

    lora_A: nn.Parameter  # noqa: N815  # the names of the paper and of peft
    """[rank, in_features]"""
    lora_B: nn.Parameter  # noqa: N815
    """[out_features, rank]"""
    lora_scale: float
    is_adapter_on: bool

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # as in nn.Linear
        """Return the output of the merged layer, or of the initial one without the adapter."""
        if not self.is_adapter_on:
            return super().forward(input)
        adapter = (self.lora_A, self.lora_B, self.lora_scale)
        output: Tensor = _MergedLinear.apply(input, self.weight, self.bias, *adapter)  # type: ignore[no-untyped-call]
        return output


class _MergedLinear(torch.autograd.Function):
    """A linear layer with a merged weight, which is not retained for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,  # noqa: A002
        weight: Tensor,
        bias: Tensor | None,
        lora_a: Tensor,
        lora_b: Tensor,
        scale: float,
    ) -> Tensor:
        ctx.save_for_backward(input, weight, lora_a, lora_b)
        ctx.scale = scale
        return linear(input, merged_weight(weight, lora_a, lora_b, scale), bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        given, weight, lora_a, lora_b = ctx.saved_tensors
        grad_input = None
        if ctx.needs_input_grad[0]:
            grad_input = grad @ merged_weight(weight, lora_a, lora_b, ctx.scale)
        rows, grads = given.reshape(-1, given.shape[-1]), grad.reshape(-1, grad.shape[-1])
        # Not from the gradient of W, which would cost as much as training W.
        grad_a = (grads @ lora_b).T @ rows * ctx.scale
        grad_b = grads.T @ (rows @ lora_a.T) * ctx.scale
        return grad_input, None, None, grad_a, grad_b, None


def merged_weight(weight: Tensor, lora_a: Tensor, lora_b: Tensor, scale: float) -> Tensor:
    """Return W + scale·B·A: [out, in]; all tensors have the same dtype."""
    return torch.addmm(weight, lora_b, lora_a, alpha=scale)


def adapt(causal_lm: PreTrainedModel, lora: LoraSpec, *, seed: int) -> list[str]:
    """Freeze the model and add fp32 adapters to the targets; return the targets' names.

    The output does not change. Parameters keep their names. An adapter depends on `seed` and on the
    name of its layer. Raises UnsupportedLora.
    """
    targets = lora_targets(causal_lm, lora)
    causal_lm.requires_grad_(requires_grad=False)
    for name, module in targets.items():
        module.__class__ = LoraLinear
        adapted: Any = module
        adapted.lora_A = nn.Parameter(_initial_a(f"{seed}:{name}", lora.rank, module.in_features))
        adapted.lora_B = nn.Parameter(torch.zeros(module.out_features, lora.rank))
        adapted.lora_scale, adapted.is_adapter_on = lora.scale, True
    return sorted(targets)


def _initial_a(key: str, rank: int, size: int) -> Tensor:
    """Return uniform values with variance 1 / (3·size), the default of `nn.Linear` and peft."""
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]) >> 1
    generator = torch.Generator().manual_seed(seed)
    bound = 1 / math.sqrt(size)
    return torch.empty(rank, size).uniform_(-bound, bound, generator=generator)


def adapted_layers(model: nn.Module) -> dict[str, LoraLinear]:
    """Return the layers with an adapter by name."""
    return {name: each for name, each in model.named_modules() if isinstance(each, LoraLinear)}


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """Compute with the initial model."""
    adapted = adapted_layers(model).values()
    try:
        for layer in adapted:
            layer.is_adapter_on = False
        yield
    finally:
        for layer in adapted:
            layer.is_adapter_on = True


def merged_parameters(model: nn.Module, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, full tensor) of one parameter at a time, adapters merged into their layers.

    Tied parameters appear once. All ranks must exhaust the iterator; the model does not change.
    """
    adapted = {f"{name}.weight": layer for name, layer in adapted_layers(model).items()}
    for name, parameter in model.named_parameters():
        if name.endswith(ADAPTER_SUFFIXES):
            continue
        tensor = full_tensor(parameter, dtype)
        if (layer := adapted.get(name)) is not None:
            lora_a, lora_b = full_tensor(layer.lora_A, dtype), full_tensor(layer.lora_B, dtype)
            tensor = merged_weight(tensor, lora_a, lora_b, layer.lora_scale)
        yield name, tensor


def adapter_parameters(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, full tensor in fp32) of the adapters' parameters (collective)."""
    for name, parameter in model.named_parameters():
        if name.endswith(ADAPTER_SUFFIXES):
            yield name, full_tensor(parameter, torch.float32)


def lora_targets(causal_lm: PreTrainedModel, lora: LoraSpec) -> dict[str, nn.Linear]:
    """Return the linear layers that get adapters, by name. Raises UnsupportedLora."""
    if getattr(causal_lm.config, "quantization_config", None):
        raise UnsupportedLora(
            "training.lora: the weights are quantized; use the model in full precision"
        )
    candidates = _linear_layers(causal_lm)
    if lora.targets != [ALL_LINEAR]:
        for target in lora.targets:
            _check_target(causal_lm, target, candidates)
    targets = {name: each for name, each in candidates.items() if lora.is_target(name)}
    if not targets:
        raise UnsupportedLora(
            f"training.lora: {type(causal_lm).__name__} has no torch.nn.Linear in its decoder "
            "layers; train all parameters, or use another model"
        )
    for name in targets:
        _reject_direct_reads(causal_lm, name)
    return targets


def _linear_layers(causal_lm: PreTrainedModel) -> dict[str, nn.Linear]:
    """Return the linear layers within the text model's decoder layers.

    Subclasses of `nn.Linear` are left out, as they may use their weight differently.
    """
    inside = {module for layer in decoder_layers(causal_lm) for module in layer.modules()}
    inside &= set(causal_lm.get_decoder().modules())
    return {
        name: module
        for name, module in causal_lm.named_modules()
        if type(module) is nn.Linear and module in inside
    }


def _check_target(
    causal_lm: PreTrainedModel, target: str, candidates: dict[str, nn.Linear]
) -> None:
    """Raise UnsupportedLora if the target matches no candidate, an embedding or the head."""
    matches = {
        name: module
        for name, module in causal_lm.named_modules()
        if f".{name}".endswith(f".{target}")
    }
    outer = [causal_lm.get_input_embeddings(), causal_lm.get_output_embeddings()]
    for name, module in matches.items():
        if isinstance(module, nn.Embedding) or any(module is each for each in outer):
            raise UnsupportedLora(
                f"training.lora.targets: {target} is {name}, an embedding or the LM head, which "
                "cannot have adapters; remove it"
            )
    if matches.keys() & candidates.keys():
        return
    other = next((f" ({name} is a {type(each).__name__})" for name, each in matches.items()), "")
    available = sorted({name.rpartition(".")[2] for name in candidates})[:_MAX_LISTED]
    raise UnsupportedLora(
        f"training.lora.targets: {target} matches no torch.nn.Linear of a decoder layer"
        f"{other}; the model has {', '.join(available) or 'none'}"
    )


def _reject_direct_reads(causal_lm: PreTrainedModel, name: str) -> None:
    """Raise UnsupportedLora if the code of a module around a layer reads the layer's weight.

    Such code, for example Mamba's kernels, would ignore the adapter.
    """
    *parents, leaf = name.split(".")
    # Reads of dtype, device and shape do not depend on the adapter.
    read = re.compile(rf"\.{leaf}\.weight\b(?!\.(dtype|device|shape|size|data_ptr)\b)")
    module: nn.Module = causal_lm
    for parent in parents:
        module = module.get_submodule(parent)
        # A PreTrainedModel initializes weights and leaves their use to its modules.
        if not isinstance(module, PreTrainedModel) and read.search(_source(type(module))):  # type: ignore[arg-type]  # python/mypy#11469
            raise UnsupportedLora(
                f"training.lora: {type(module).__name__} reads the weight of {name} without "
                f"calling the layer, so an adapter would be ignored; leave {leaf} out of "
                "training.lora.targets, or train all parameters"
            )


@cache
def _source(kind: type) -> str:
    """Return the source code of a module's class and of its bases in transformers."""
    classes = (each for each in kind.__mro__ if each.__module__.startswith("transformers."))
    return "\n".join(map(inspect.getsource, classes))
