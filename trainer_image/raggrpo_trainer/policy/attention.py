"""Exact attention for shared-prefix rows, registered as a transformers attention function.

A row consists of spans; a span is a prompt followed by its completions. A token of a completion
attends to the whole prompt and to the completion up to the token itself. A dense [T, T] mask would
compute all pairs of tokens. Instead, a span takes two attention calls without a mask. In the first,
all tokens attend to the prompt's keys (causal and top-left aligned, so that tokens after the prompt
attend to the whole prompt). In the second, a batch of completions, each completion attends to
itself. The two outputs are combined by their log-sum-exps, which is exact.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from .packing import Span
from .segment_attention import has_flash, segment_attention

SHARED_PREFIX_ATTENTION = "raggrpo_shared_prefix"
"""`attn_implementation` of models called with `shared_prefix=spans`."""
_UNSUPPORTED_OPTIONS = ("softcap", "s_aux", "position_bias")
"""Attention options that some models use and shared-prefix rows do not support."""


@torch.compiler.disable  # type: ignore[untyped-decorator]  # spans differ in every micro-batch
def shared_prefix_attention(
    module: torch.nn.Module,
    query: Tensor,  # [1, heads, T, D]
    key: Tensor,  # [1, kv_heads, T, D]
    value: Tensor,  # [1, kv_heads, T, D]
    attention_mask: Tensor | None,  # noqa: ARG001  # the spans define the mask
    *,
    scaling: float,
    shared_prefix: Sequence[Span],
    **options: Any,
) -> tuple[Tensor, None]:
    """Return the attention output [1, T, heads, D] and None, as transformers expects.

    Raises ValueError if the model's attention has an option that shared-prefix rows do not support.
    """
    for name in _UNSUPPORTED_OPTIONS + _effective_window(
        options.get("sliding_window"), shared_prefix
    ):
        if options.get(name) is not None:
            raise ValueError(
                f"{type(module).__name__} uses {name}, which shared-prefix rows do not support;"
                " set training.rowLayout: Padded"
            )
    if query.device.type == "cpu":
        joined: Tensor = _JoinedAttention.apply(query, key, value, scaling, shared_prefix)  # type: ignore[no-untyped-call]
        return joined, None
    if has_flash(query, key, value):
        return segment_attention(query, key, value, scaling, shared_prefix), None
    return concatenated_attention(query, key, value, scaling, shared_prefix), None


def concatenated_attention(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, spans: Sequence[Span]
) -> Tensor:
    """Return the attention output using torch's public API; copies the prompt per completion.

    Used for FP32 on GPUs, and for GPUs that the flash kernels do not support.
    """
    repeats = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    outputs = []
    for span in spans:
        q, k, v = (_tokens(x, span) for x in (query, key, value))
        pq, pk, pv = (_prompt(x, span) for x in (q, k, v))
        attended = scaled_dot_product_attention(pq, pk, pv, is_causal=True, scale=scaling)
        outputs.append(attended.transpose(1, 2)[0])
        for own_q, own_k, own_v in _blocks(span, q, k, v):
            count, _, length, _ = own_q.shape
            keys, values = (
                torch.cat([shared.expand(count, -1, -1, -1), own], dim=2)
                for shared, own in ((pk, own_k), (pv, own_v))
            )
            mask = torch.ones(length, span.prompt + length, dtype=torch.bool, device=query.device)
            attended = scaled_dot_product_attention(
                own_q, keys, values, attn_mask=mask.tril(span.prompt), scale=scaling
            )
            outputs.append(attended.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)[None]


class _JoinedAttention(torch.autograd.Function):
    """Both attention calls of every span, with the CPU flash kernel and its backward pass.

    The kernel's backward pass takes output and log-sum-exp as inputs. With the combined output and
    log-sum-exp, the backward pass of each call returns exactly the call's share of the gradient, as
    in ring attention (arXiv 2310.01889).
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, scaling: float, spans: Sequence[Span]
    ) -> Tensor:
        output = torch.empty_like(query)
        lse = query.new_empty(
            (*query.shape[:3], 1), dtype=torch.promote_types(query.dtype, torch.float32)
        )
        for span in spans:
            q, k, v, o, normalizer = (_tokens(x, span) for x in (query, key, value, output, lse))
            o[...], normalizer[...] = _attend(scaling, q, _prompt(k, span), _prompt(v, span))
            for block in _blocks(span, q, k, v, o, normalizer):
                *inputs, joined, joined_lse = block
                own, own_lse = _attend(scaling, *inputs)
                joined.lerp_(own, torch.sigmoid(own_lse - joined_lse).to(own.dtype))
                joined_lse.copy_(torch.logaddexp(own_lse, joined_lse))
        ctx.save_for_backward(query, key, value, output, lse)
        ctx.scaling, ctx.spans = scaling, spans
        return output.transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved = (*ctx.saved_tensors, grad.transpose(1, 2))
        gradients = [torch.empty_like(x) for x in saved[:3]]
        for span in ctx.spans:
            q, k, v, *rest = inputs = [_tokens(x, span) for x in saved]
            grad_q, grad_k, grad_v = outputs = [_tokens(x, span) for x in gradients]
            grad_q[...], _prompt(grad_k, span)[...], _prompt(grad_v, span)[...] = _gradients(
                ctx.scaling, q, _prompt(k, span), _prompt(v, span), *rest
            )
            for *block, own_q, own_k, own_v in _blocks(span, *inputs, *outputs):
                more_q, own_k[...], own_v[...] = _gradients(ctx.scaling, *block)
                own_q += more_q
        return *gradients, None, None


def _effective_window(window: int | None, spans: Sequence[Span]) -> tuple[str, ...]:
    """Return ("sliding_window",) if the window is shorter than the longest sequence, else ()."""
    longest = max(
        span.prompt + max((length for _, length in span.blocks), default=0) for span in spans
    )
    return ("sliding_window",) if window is not None and window < longest else ()


def _attend(scaling: float, *tensors: Tensor) -> tuple[Tensor, Tensor]:
    """Return output and log-sum-exp [..., T, 1] of causal attention; takes query, key, value."""
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    output, lse = flash(*tensors, 0.0, True, scale=scaling)
    return output, lse[..., None]


def _gradients(scaling: float, *tensors: Tensor) -> Sequence[Tensor]:
    """Return the gradients of query, key, value.

    Takes query, key, value, output, log-sum-exp and the gradient of the output.
    """
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    query, key, value, output, lse, grad = tensors
    gradients: Sequence[Tensor] = flash(
        grad, query, key, value, output, lse[..., 0], 0.0, True, scale=scaling
    )
    return gradients


def _tokens(x: Tensor, span: Span) -> Tensor:
    """Return a view of the span's tokens: [1, heads, T, D] -> [1, heads, S, D]."""
    length = span.prompt + sum(count * length for count, length in span.blocks)
    return x[:, :, span.start : span.start + length]


def _prompt(x: Tensor, span: Span) -> Tensor:
    return x[:, :, : span.prompt]


def _blocks(span: Span, *tensors: Tensor) -> Iterator[list[Tensor]]:
    """Yield views of equally long completions: [1, heads, S, D] -> [n, heads, length, D] each."""
    first = span.prompt
    for count, length in span.blocks:
        block = slice(first, first + count * length)
        yield [x[0, :, block].unflatten(1, (count, length)).transpose(0, 1) for x in tensors]  # type: ignore[no-untyped-call]
        first = block.stop


AttentionInterface.register(SHARED_PREFIX_ATTENTION, shared_prefix_attention)
