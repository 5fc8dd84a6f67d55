"""Logprobs of given tokens without a [tokens, vocabulary] tensor."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from raggrpo_api.memory.arithmetic import GPU_LOGIT_CHUNK, LOGIT_CHUNK


@dataclass(frozen=True, slots=True)
class LogitTransform:
    """Scale and soft cap that convert the LM head's products to logits."""

    scale: float = 1.0
    soft_cap: float | None = None
    """Logits are bounded to ±soft_cap by cap · tanh(logit / cap) (Gemma 2, arXiv 2408.00118)."""

    def apply_(self, logits: Tensor) -> Tensor:
        """Convert fp32 products [..., V] to logits in place."""
        if self.scale != 1.0:
            logits.mul_(self.scale)
        if self.soft_cap is not None:
            logits.div_(self.soft_cap).tanh_().mul_(self.soft_cap)
        return logits

    def chain_(self, grad: Tensor, logits: Tensor) -> Tensor:
        """Convert a gradient of the logits to the gradient of the products, in place."""
        if self.soft_cap is not None:
            grad.mul_(1.0 - (logits / self.soft_cap).square())
        return grad.mul_(self.scale) if self.scale != 1.0 else grad


IDENTITY = LogitTransform()


def chunked_logprobs(
    hidden: Tensor,  # [K, H]
    weight: Tensor,  # [V, H], the output embedding
    targets: Tensor,  # [K]
    *,
    bias: Tensor | None = None,  # [V]
    transform: LogitTransform = IDENTITY,
    temperature: float = 1.0,
    chunk: int | None = None,
    compiled: bool = False,
) -> Tensor:
    """Return log softmax(transform(hidden @ weight.T + bias) / temperature)[target] in fp32: [K].

    Logits are computed for `chunk` tokens at a time, reduced and discarded, then recomputed in the
    backward pass, so peak memory does not grow with K. The last chunk's logits are cached, because
    the backward pass starts with this chunk and needs the memory anyway. With bf16 inputs the
    matrix products run in bf16; softmax, sums and the accumulation of the weight's gradient over
    chunks run in fp32. With `compiled`, the operations between the matrix products are compiled
    into few kernels.
    """
    size = LOGIT_CHUNK if hidden.device.type == "cpu" else GPU_LOGIT_CHUNK
    chunk = chunk or max(1, size // weight.shape[0])
    result: Tensor = _ChunkedLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, targets, transform, temperature, chunk, compiled
    )
    return result


class _ChunkedLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        transform: LogitTransform,
        temperature: float,
        chunk: int,
        compiled: bool,
    ) -> Tensor:
        logprobs = hidden.new_empty(len(targets), dtype=torch.float32)
        normalizers = torch.empty_like(logprobs)
        scaled = None
        for rows in _chunks(len(targets), chunk):
            scaled = None  # free this chunk's logits before allocating the next
            products = linear(hidden[rows], weight, bias)
            if compiled:
                result = _compiled(_fused_logprobs)(products, targets[rows], transform, temperature)
            else:
                scaled = transform.apply_(products.float()).div_(temperature)
                result = _target_logprobs(scaled, targets[rows])
            logprobs[rows], normalizers[rows] = result
        ctx.save_for_backward(hidden, weight, bias, targets, normalizers)
        # The gradient of a soft cap needs the logits before division by the temperature.
        ctx.cached = scaled if transform.soft_cap is None else None
        ctx.transform = transform
        ctx.temperature = temperature
        ctx.chunk = chunk
        ctx.compiled = compiled
        return logprobs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, normalizers = ctx.saved_tensors
        transform = ctx.transform
        temperature = ctx.temperature
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32)
        grad_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        for rows in reversed(_chunks(len(targets), ctx.chunk)):
            inputs = (targets[rows], normalizers[rows, None], grad[rows, None] / temperature)
            if ctx.compiled:
                products = linear(hidden[rows], weight, bias)
                delta = _compiled(_fused_gradient)(products, *inputs, transform, temperature)
            else:
                logits = scaled = ctx.cached
                ctx.cached = None
                if scaled is None:
                    logits = transform.apply_(linear(hidden[rows], weight, bias).float())
                    scaled = logits if transform.soft_cap is None else logits.clone()
                    scaled.div_(temperature)
                delta = transform.chain_(_gradient_(scaled, *inputs), logits)
            if grad_bias is not None:
                grad_bias += delta.sum(0, dtype=torch.float32)
            delta = delta.to(weight.dtype)
            grad_hidden[rows] = delta @ weight
            _add_product_(grad_weight, delta.T, hidden[rows])
        return (
            grad_hidden,
            grad_weight.to(weight.dtype),
            None if grad_bias is None else grad_bias.to(bias.dtype),
            *(None,) * 5,
        )


def _chunks(length: int, chunk: int) -> list[slice]:
    return [slice(start, start + chunk) for start in range(0, length, chunk)]


def _target_logprobs(scaled: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logprobs of the targets and the log-sum-exps: [C], [C]."""
    normalizers = scaled.logsumexp(-1)
    return scaled.gather(-1, targets[:, None])[:, 0] - normalizers, normalizers


def _gradient_(scaled: Tensor, targets: Tensor, normalizers: Tensor, scale: Tensor) -> Tensor:
    """Return scale * (one_hot(target) - softmax), [C, V]; overwrites the scaled logits."""
    delta = scaled.sub_(normalizers).exp_().mul_(-scale)
    return delta.scatter_add_(-1, targets[:, None], scale)


def _fused_logprobs(
    products: Tensor, targets: Tensor, transform: LogitTransform, temperature: float
) -> tuple[Tensor, Tensor]:
    return _target_logprobs(transform.apply_(products.float()) / temperature, targets)


def _fused_gradient(
    products: Tensor,
    targets: Tensor,
    normalizers: Tensor,
    scale: Tensor,
    transform: LogitTransform,
    temperature: float,
) -> Tensor:
    """Return the gradient of the products, in their dtype; avoids scatter, which does not fuse."""
    logits = transform.apply_(products.float())
    is_target = torch.arange(products.shape[1], device=products.device) == targets[:, None]
    delta = scale * (is_target.float() - (logits / temperature - normalizers).exp())
    return transform.chain_(delta, logits).to(products.dtype)


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=True)


def _add_product_(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left @ right to an fp32 tensor; on a GPU, the product is not rounded to bf16."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    elif total.is_cuda:
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        total += left @ right
