"""Attention of shared-prefix rows on a GPU: two flash kernel calls for any number of prompts.

The kernel computes the attention of many segments in one call, given the start of each segment. In
one call, every prompt and every completion attends to itself. In the other, all completions attend
to their prompts. The two outputs are combined by their log-sum-exps, which is exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_flash_attention

from .packing import Span, on_device


@dataclass(frozen=True, slots=True)
class Segments:
    """S segments of queries and keys; a query attends to the keys of its segment."""

    queries: Tensor  # [S + 1] of int32, start of each segment
    keys: Tensor  # [S + 1]
    longest_query: int
    longest_key: int


@dataclass(frozen=True, slots=True)
class _Row:
    """The segments and token positions of the two calls."""

    own: Segments
    over_prompts: Segments
    completions: Tensor  # [C], positions of completions' tokens
    prompts: Tensor  # [P], positions of prompts' tokens


def has_flash(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Return whether the kernel supports the GPU, the data type and the size of attention heads."""
    params = SDPAParams(query, key, value, None, 0.0, True, True)
    has_supported_size = query.shape[-1] % 8 == 0  # torch would pad other sizes
    return query.is_cuda and has_supported_size and bool(can_use_flash_attention(params))


def segment_attention(
    query: Tensor,  # [1, heads, T, D]
    key: Tensor,  # [1, kv_heads, T, D]
    value: Tensor,  # [1, kv_heads, T, D]
    scaling: float,
    spans: Sequence[Span],
) -> Tensor:  # [1, T, heads, D]
    """Return the attention output of one row."""
    result: Tensor = _SegmentAttention.apply(query, key, value, scaling, tuple(spans))  # type: ignore[no-untyped-call]
    return result


class _SegmentAttention(torch.autograd.Function):
    """Both kernel calls of a row as one autograd function.

    Both backward calls take the combined output and log-sum-exp, so their gradients add up to the
    exact gradient.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float,
        spans: tuple[Span, ...],
    ) -> Tensor:
        row = _row(spans, query.device)
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        output, lse = flash(scaling, row.own, True, q, k, v)
        if len(row.completions):
            at, prompts = row.completions, row.prompts
            more, more_lse = flash(scaling, row.over_prompts, False, q[at], k[prompts], v[prompts])
            own_lse = lse[:, at]
            share = torch.sigmoid(more_lse - own_lse).transpose(0, 1)[..., None]
            output[at] = output[at].lerp(more, share.to(more.dtype))
            lse[:, at] = torch.logaddexp(own_lse, more_lse)
        ctx.save_for_backward(q, k, v, output, lse)
        ctx.scaling, ctx.row = scaling, row
        return output[None]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, output, lse = ctx.saved_tensors
        row = ctx.row
        grad_output = grad[0].contiguous()
        gradients = flash_gradients(ctx.scaling, row.own, True, grad_output, q, k, v, output, lse)
        if len(row.completions):
            at, prompts = row.completions, row.prompts
            gathered = (grad_output[at], q[at], k[prompts], v[prompts], output[at], lse[:, at])
            more = flash_gradients(ctx.scaling, row.over_prompts, False, *gathered)
            positions = (at, prompts, prompts)
            for gradient, index, addend in zip(gradients, positions, more, strict=True):
                gradient[index] += addend
        return *(x.transpose(0, 1)[None] for x in gradients), None, None


def flash(
    scaling: float, segments: Segments, is_causal: bool, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor]:  # [T, heads, D], [heads, T] in fp32
    """Return the attention output and log-sum-exp of the segments, from [T, heads, D] each."""
    output, lse, *_ = torch.ops.aten._flash_attention_forward(
        *(query, key, value, segments.queries, segments.keys),
        *(segments.longest_query, segments.longest_key, 0.0, is_causal, False),
        scale=scaling,
    )
    return output, lse


def flash_gradients(
    scaling: float, segments: Segments, is_causal: bool, *tensors: Tensor
) -> Sequence[Tensor]:
    """Return the gradients of query, key, value.

    Takes the gradient of the output, then query, key, value, output, log-sum-exp.
    """
    grad, query, key, value, output, lse = tensors
    unused = query.new_empty(0)
    state = torch.empty(2, dtype=torch.uint64, device=query.device)  # unused without dropout
    gradients: Sequence[Tensor] = torch.ops.aten._flash_attention_backward(
        *(grad, query, key, value, output, lse.contiguous(), segments.queries, segments.keys),
        *(segments.longest_query, segments.longest_key, 0.0, is_causal, state, unused),
        scale=scaling,
    )
    return gradients


@lru_cache(maxsize=2)  # all layers of the model and of the reference use the same row
def _row(spans: tuple[Span, ...], device: torch.device) -> _Row:
    own: list[int] = []
    completions: list[int] = []
    prompts: list[int] = []
    query_lengths: list[int] = []
    key_lengths: list[int] = []
    for span in spans:
        lengths = [length for count, length in span.blocks for _ in range(count)]
        first = span.start + span.prompt
        own += [span.prompt, *lengths]
        if lengths:
            prompts += range(span.start, first)
            completions += range(first, first + sum(lengths))
            query_lengths.append(sum(lengths))
            key_lengths.append(span.prompt)
    return _Row(
        _segments(own, own, device),
        _segments(query_lengths, key_lengths, device),
        on_device(torch.tensor(completions, dtype=torch.long), device),
        on_device(torch.tensor(prompts, dtype=torch.long), device),
    )


def _segments(queries: list[int], keys: list[int], device: torch.device) -> Segments:
    starts = (list(accumulate(lengths, initial=0)) for lengths in (queries, keys))
    query_starts, key_starts = (
        on_device(torch.tensor(each, dtype=torch.int32), device) for each in starts
    )
    return Segments(query_starts, key_starts, max(queries, default=0), max(keys, default=0))
