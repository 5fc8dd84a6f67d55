"""Exact attention for shared-prefix rows, as an attention function of transformers.

A row holds prompts, each followed by its completions. A completion's token attends to its prompt
and to its own completion up to itself; a dense [T, T] mask would compute every pair of tokens for
that. Here each span costs two attentions without any mask: all its tokens over the prompt's
keys (causal, top-left aligned: rows below the prompt see all of it), and the completions, as a
batch, over themselves. The two are joined by their log-sum-exps, which is exact.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from .packing import Span

SHARED_PREFIX_ATTENTION = "raggrpo_shared_prefix"
"""`attn_implementation` of models that are called with `shared_prefix=spans`."""
_UNKNOWN_OPTIONS = ("sliding_window", "softcap", "s_aux", "position_bias")
"""What some models ask of their attention and this one cannot do."""


@torch.compiler.disable  # type: ignore[untyped-decorator]  # spans differ in every micro-batch
def shared_prefix_attention(
    module: torch.nn.Module,
    query: Tensor,  # [1, heads, T, D]
    key: Tensor,  # [1, kv_heads, T, D]
    value: Tensor,  # [1, kv_heads, T, D]
    attention_mask: Tensor | None,  # noqa: ARG001  # the spans say it all
    *,
    scaling: float,
    shared_prefix: Sequence[Span],
    **options: Any,
) -> tuple[Tensor, None]:
    """Return the attention output [1, T, heads, D], in the form transformers asks for.

    Raises ValueError for models whose attention is more than softmax(q k) v.
    """
    for name in _UNKNOWN_OPTIONS:
        if options.get(name) is not None:
            raise ValueError(
                f"{type(module).__name__} uses {name}, which shared-prefix rows cannot express;"
                " set training.rowLayout: Padded"
            )
    if query.device.type == "cpu":
        joined: Tensor = _JoinedAttention.apply(query, key, value, scaling, shared_prefix)  # type: ignore[no-untyped-call]
        return joined, None
    return concatenated_attention(query, key, value, scaling, shared_prefix), None


def concatenated_attention(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, spans: Sequence[Span]
) -> Tensor:
    """Return the same through the public function alone: the prompt's keys are copied n times."""
    repeats = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    parts = []
    for span in spans:
        q, k, v = (_tokens(x, span) for x in (query, key, value))
        pq, pk, pv = (_prompt(x, span) for x in (q, k, v))
        attended = scaled_dot_product_attention(pq, pk, pv, is_causal=True, scale=scaling)
        parts.append(attended.transpose(1, 2)[0])
        if not span.completions:
            continue
        own = _batch(q, span)
        count, _, length, _ = own.shape
        keys, values = (
            torch.cat([shared.expand(count, -1, -1, -1), _batch(x, span)], dim=2)
            for shared, x in ((pk, k), (pv, v))
        )
        mask = torch.ones(length, span.prompt + length, dtype=torch.bool, device=query.device)
        attended = scaled_dot_product_attention(
            own, keys, values, attn_mask=mask.tril(span.prompt), scale=scaling
        )
        parts.append(_flat(attended, span))
    return torch.cat(parts)[None]


class _JoinedAttention(torch.autograd.Function):
    """The two attentions of every span through the CPU's flash kernel and its backward.

    The kernel's backward pass takes the output and the log-sum-exp as inputs. Given the joined
    ones, each half returns exactly its share of the gradient, as in ring attention
    (arXiv 2310.01889).
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, scaling: float, spans: Sequence[Span]
    ) -> Tensor:
        outputs, normalizers = [], []
        for span in spans:
            q, k, v = (_tokens(x, span) for x in (query, key, value))
            output, lse = _attend(scaling, q, _prompt(k, span), _prompt(v, span))
            output, lse = output.transpose(1, 2)[0], lse.transpose(1, 2)[0]  # [S, heads, ...]
            if span.completions:
                own, own_lse = _attend(scaling, *(_batch(x, span) for x in (q, k, v)))
                own, own_lse = _flat(own, span), _flat(own_lse[..., None], span)[..., 0]
                below, below_lse = output[span.prompt :], lse[span.prompt :]
                share = torch.sigmoid(own_lse - below_lse).to(own.dtype)
                below.lerp_(own, share[..., None])
                below_lse.copy_(torch.logaddexp(own_lse, below_lse))
            outputs.append(output)
            normalizers.append(lse)
        output = torch.cat(outputs)[None]
        ctx.save_for_backward(query, key, value, output, torch.cat(normalizers)[None, ..., None])
        ctx.scaling, ctx.spans = scaling, spans
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, *by_token = ctx.saved_tensors
        by_head = [x.transpose(1, 2) for x in (*by_token, grad)]  # output, lse, grad
        grad_query, grad_key, grad_value = [], [], []
        for span in ctx.spans:
            parts = [_tokens(x, span) for x in (query, key, value, *by_head)]
            q, k, v, *rest = parts
            prompt = _gradients(ctx.scaling, q, _prompt(k, span), _prompt(v, span), *rest)
            grad_query.append(prompt[0])
            grad_key.append(prompt[1])
            grad_value.append(prompt[2])
            if span.completions:
                own = _gradients(ctx.scaling, *(_batch(x, span) for x in parts))
                own_query, own_key, own_value = (_flat(x, span).transpose(0, 1)[None] for x in own)
                prompt[0][:, :, span.prompt :] += own_query
                grad_key.append(own_key)
                grad_value.append(own_value)
        return *(torch.cat(x, dim=2) for x in (grad_query, grad_key, grad_value)), None, None


def _attend(scaling: float, *tensors: Tensor) -> tuple[Tensor, Tensor]:
    """Return output and log-sum-exp [batch, heads, length] of causal query, key, value."""
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    output, lse = flash(*tensors, 0.0, True, scale=scaling)
    return output, lse


def _gradients(scaling: float, *tensors: Tensor) -> Sequence[Tensor]:
    """Return the gradients of query, key, value, given those, output, lse [..., 1] and grad."""
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    query, key, value, output, lse, grad = tensors
    gradients: Sequence[Tensor] = flash(
        grad, query, key, value, output, lse.squeeze(-1), 0.0, True, scale=scaling
    )
    return gradients


def _tokens(x: Tensor, span: Span) -> Tensor:
    """Cut the span out: [1, heads, T, D] -> [1, heads, S, D]."""
    return x[:, :, span.start : span.start + span.prompt + sum(span.completions)]


def _prompt(x: Tensor, span: Span) -> Tensor:
    return x[:, :, : span.prompt]


def _batch(x: Tensor, span: Span) -> Tensor:
    """Lay the completions beside each other: [1, heads, S, D] -> [n, heads, longest, D].

    Padding is zero and comes last: no token sees it, and without an upstream gradient it has none.
    """
    flat = x[0, :, span.prompt :].transpose(0, 1)
    shape = len(span.completions), max(span.completions)
    if span.valid is not None:
        padded = flat.new_zeros(shape[0] * shape[1], *flat.shape[1:])
        flat = padded.index_copy(0, span.valid, flat)
    return flat.reshape(*shape, *flat.shape[1:]).transpose(1, 2)


def _flat(x: Tensor, span: Span) -> Tensor:
    """Undo `_batch`: [n, heads, longest, D] -> [sum of completions, heads, D]."""
    flat = x.transpose(1, 2).flatten(0, 1)
    return flat if span.valid is None else flat.index_select(0, span.valid)


AttentionInterface.register(SHARED_PREFIX_ATTENTION, shared_prefix_attention)
