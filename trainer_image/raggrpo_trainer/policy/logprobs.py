"""Log-probabilities of given tokens without a [tokens, vocabulary] tensor. Knows no model."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from raggrpo_api.memory import LOGIT_CHUNK


@dataclass(frozen=True, slots=True)
class LogitTransform:
    """What a model does to the products with its output embedding before they are logits."""

    scale: float = 1.0
    soft_cap: float | None = None
    """Logits are squeezed into ±soft_cap by cap · tanh(logit / cap) (Gemma 2, arXiv 2408.00118)."""

    def apply_(self, logits: Tensor) -> Tensor:
        """Transform fp32 products in place: [..., V]."""
        if self.scale != 1.0:
            logits.mul_(self.scale)
        if self.soft_cap is not None:
            logits.div_(self.soft_cap).tanh_().mul_(self.soft_cap)
        return logits

    def chain_(self, grad: Tensor, logits: Tensor) -> Tensor:
        """Turn a gradient of the transformed logits into that of the products, in place."""
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
) -> Tensor:
    """Return log softmax(transform(hidden @ weight.T + bias) / temperature)[target] in fp32: [K].

    Logits are computed for `chunk` tokens at a time, reduced and discarded, then recomputed in the
    backward pass, so peak memory does not grow with K. Those of the last chunk are kept: backward
    begins with it, when it needs the memory anyway. With bf16 inputs the matrix products run in
    bf16; softmax, sums and the accumulation of the weight's gradient over chunks run in fp32.
    """
    chunk = chunk or max(1, LOGIT_CHUNK // weight.shape[0])
    result: Tensor = _ChunkedLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, targets, transform, temperature, chunk
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
    ) -> Tensor:
        logprobs = hidden.new_empty(len(targets), dtype=torch.float32)
        normalizers = torch.empty_like(logprobs)
        for part in _parts(len(targets), chunk):
            scaled = _logits(hidden[part], weight, bias, transform).div_(temperature)
            normalizers[part] = scaled.logsumexp(-1)
            picked = scaled.gather(-1, targets[part, None]).squeeze(-1)
            logprobs[part] = picked - normalizers[part]
        ctx.save_for_backward(hidden, weight, bias, targets, normalizers)
        # a soft cap's gradient needs the logits as they were before the temperature
        ctx.kept = scaled if len(targets) and transform.soft_cap is None else None
        ctx.transform, ctx.temperature, ctx.chunk = transform, temperature, chunk
        return logprobs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, normalizers = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32)
        grad_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        for part in reversed(_parts(len(targets), ctx.chunk)):
            logits = scaled = ctx.kept
            ctx.kept = None
            if scaled is None:
                logits = _logits(hidden[part], weight, bias, ctx.transform)
                scaled = logits if ctx.transform.soft_cap is None else logits.clone()
                scaled.div_(ctx.temperature)
            scale = grad[part, None] / ctx.temperature
            # d logprob / d logits = one_hot(target) - softmax; without a soft cap in their place
            delta = scaled.sub_(normalizers[part, None]).exp_().mul_(-scale)
            delta.scatter_add_(-1, targets[part, None], scale)
            ctx.transform.chain_(delta, logits)
            if grad_bias is not None:
                grad_bias += delta.sum(0)
            delta = delta.to(weight.dtype)
            grad_hidden[part] = delta @ weight
            grad_weight += delta.T @ hidden[part]
        return (
            grad_hidden,
            grad_weight.to(weight.dtype),
            None if grad_bias is None else grad_bias.to(bias.dtype),
            None,
            None,
            None,
            None,
        )


def _parts(length: int, chunk: int) -> list[slice]:
    return [slice(start, start + chunk) for start in range(0, length, chunk)]


def _logits(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, transform: LogitTransform
) -> Tensor:
    return transform.apply_(torch.nn.functional.linear(hidden, weight, bias).float())
