"""Log-probabilities of given tokens without a [tokens, vocabulary] tensor. Knows no model."""

from typing import Any

import torch
from torch import Tensor

from raggrpo_api.memory import LOGIT_CHUNK


def chunked_logprobs(
    hidden: Tensor,  # [K, H]
    weight: Tensor,  # [V, H], the output embedding
    targets: Tensor,  # [K]
    *,
    bias: Tensor | None = None,  # [V]
    temperature: float = 1.0,
    chunk: int | None = None,
) -> Tensor:
    """Return log softmax(hidden @ weight.T / temperature)[target] in fp32: [K].

    Logits are computed for `chunk` tokens at a time, reduced and discarded, then recomputed in the
    backward pass, so peak memory does not grow with K. With bf16 inputs the matrix products run in
    bf16; softmax, sums and the accumulation of the weight's gradient over chunks run in fp32.
    """
    chunk = chunk or max(1, LOGIT_CHUNK // weight.shape[0])
    result: Tensor = _ChunkedLogprobs.apply(hidden, weight, bias, targets, temperature, chunk)  # type: ignore[no-untyped-call]
    return result


class _ChunkedLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        chunk: int,
    ) -> Tensor:
        logprobs = hidden.new_empty(len(targets), dtype=torch.float32)
        normalizers = torch.empty_like(logprobs)
        for part in _parts(len(targets), chunk):
            logits = _logits(hidden[part], weight, bias, temperature)
            normalizers[part] = logits.logsumexp(-1)
            picked = logits.gather(-1, targets[part, None]).squeeze(-1)
            logprobs[part] = picked - normalizers[part]
        ctx.save_for_backward(hidden, weight, bias, targets, normalizers)
        ctx.temperature, ctx.chunk = temperature, chunk
        return logprobs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, normalizers = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32)
        grad_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        for part in _parts(len(targets), ctx.chunk):
            logits = _logits(hidden[part], weight, bias, ctx.temperature)
            scale = grad[part, None] / ctx.temperature
            # d logprob / d logits = one_hot(target) - softmax, computed in place of the logits
            delta = logits.sub_(normalizers[part, None]).exp_().mul_(-scale)
            delta.scatter_add_(-1, targets[part, None], scale)
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
        )


def _parts(length: int, chunk: int) -> list[slice]:
    return [slice(start, min(start + chunk, length)) for start in range(0, length, chunk)]


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    return torch.nn.functional.linear(hidden, weight, bias).float().div_(temperature)
