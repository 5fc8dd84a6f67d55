from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from raggrpo_api.spec.training import RowLayout
from raggrpo_trainer.policy import segment_attention
from raggrpo_trainer.policy.attention import concatenated_attention, shared_prefix_attention
from raggrpo_trainer.policy.packing import Span, build_items, build_micro_batch
from support.builders.trainer.policies import make_group

Attend = Callable[[Tensor, Tensor, Tensor, Sequence[Span]], Tensor]
SCALING = 0.3


def joined(query: Tensor, key: Tensor, value: Tensor, spans: Sequence[Span]) -> Tensor:
    output: Tensor
    output, _ = shared_prefix_attention(
        torch.nn.Identity(), query, key, value, None, scaling=SCALING, shared_prefix=spans
    )
    return output


def concatenated(query: Tensor, key: Tensor, value: Tensor, spans: Sequence[Span]) -> Tensor:
    return concatenated_attention(query, key, value, SCALING, spans)


def segmented(query: Tensor, key: Tensor, value: Tensor, spans: Sequence[Span]) -> Tensor:
    return segment_attention.segment_attention(query, key, value, SCALING, spans)


@pytest.fixture(autouse=True)
def kernels_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the GPU's flash kernel by the CPU's, called once per segment.

    The rest of the code path is that of a GPU; tests/gpu runs the GPU's kernel.
    """
    monkeypatch.setattr(segment_attention, "flash", flash_by_segment)
    monkeypatch.setattr(segment_attention, "flash_gradients", gradients_by_segment)


def flash_by_segment(
    scaling: float,
    segments: segment_attention.Segments,
    is_causal: bool,
    query: Tensor,
    key: Tensor,
    value: Tensor,
) -> tuple[Tensor, Tensor]:
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    output = torch.full_like(query, torch.nan)
    lse = query.new_full((query.shape[1], query.shape[0]), torch.nan)
    for query_rows, key_rows in segment_slices(segments):
        q, k, v = batched(query[query_rows], key[key_rows], value[key_rows])
        actual, normalizer = kernel(q, k, v, 0.0, is_causal, scale=scaling)
        output[query_rows], lse[:, query_rows] = actual[0].transpose(0, 1), normalizer[0]
    return output, lse


def gradients_by_segment(
    scaling: float, segments: segment_attention.Segments, is_causal: bool, *tensors: Tensor
) -> list[Tensor]:
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    grad, query, key, value, output, lse = tensors
    gradients = [torch.full_like(x, torch.nan) for x in (query, key, value)]
    for query_rows, key_rows in segment_slices(segments):
        g, q, k, v, o = batched(
            grad[query_rows], query[query_rows], key[key_rows], value[key_rows], output[query_rows]
        )
        actual = kernel(g, q, k, v, o, lse[None, :, query_rows], 0.0, is_causal, scale=scaling)
        for gradient, rows, addend in zip(
            gradients, (query_rows, key_rows, key_rows), actual, strict=True
        ):
            gradient[rows] = addend[0].transpose(0, 1)
    return gradients


def segment_slices(segments: segment_attention.Segments) -> Iterator[tuple[slice, slice]]:
    queries, keys = pairwise(segments.queries.tolist()), pairwise(segments.keys.tolist())
    for query_rows, key_rows in zip(queries, keys, strict=True):
        yield slice(*query_rows), slice(*key_rows)


def batched(*tensors: Tensor) -> list[Tensor]:
    return [x.transpose(0, 1)[None] for x in tensors]


def dense(query: Tensor, key: Tensor, value: Tensor, spans: Sequence[Span]) -> Tensor:
    mask = dense_mask(spans)
    repeats = query.shape[1] // key.shape[1]
    return scaled_dot_product_attention(
        query,
        key.repeat_interleave(repeats, 1),
        value.repeat_interleave(repeats, 1),
        attn_mask=mask,
        scale=SCALING,
    ).transpose(1, 2)


def dense_mask(spans: Sequence[Span]) -> Tensor:
    """Return the attention mask of a shared-prefix row, by its definition."""
    owner = [
        (number, segment)
        for number, span in enumerate(spans)
        for segment, length in enumerate((span.prompt, *lengths(span)))
        for _ in range(length)
    ]
    return torch.tensor(
        [
            [
                k <= q and mine[0] == other[0] and other[1] in (0, mine[1])
                for k, other in enumerate(owner)
            ]
            for q, mine in enumerate(owner)
        ]
    )


def lengths(span: Span) -> list[int]:
    return [length for count, length in span.blocks for _ in range(count)]


def spans_of(*groups: Sequence[int]) -> tuple[Span, ...]:
    made = [make_group(lengths, prompt=5 + 3 * number) for number, lengths in enumerate(groups)]
    work = build_items(made, [1.0] * sum(map(len, groups)), skip_zero_advantage=False)
    spans = build_micro_batch(work, RowLayout.SHARED_PREFIX).spans
    assert spans is not None
    return spans


@pytest.mark.parametrize("attend", [joined, concatenated, segmented])
@pytest.mark.parametrize(
    "groups",
    [[(6, 6, 6)], [(2, 9, 4)], [(6, 6), (2, 9, 4), (5,)], [(1, 1)], [(1, 4), (1,)], [(80, 3)]],
)
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_attention_values_and_gradients_match_dense_mask(
    attend: Attend, groups: list[tuple[int, ...]], kv_heads: int
) -> None:
    spans = spans_of(*groups)
    total = sum(span.prompt + sum(lengths(span)) for span in spans)
    torch.manual_seed(0)
    # transposed as in the model; scaled so that some probabilities nearly vanish
    query, key, value = inputs = [
        (3 * torch.randn(1, total, heads, 8, dtype=torch.float64)).transpose(1, 2).requires_grad_()
        for heads in (4, kv_heads, kv_heads)
    ]
    upstream = torch.randn(1, total, 4, 8, dtype=torch.float64)

    actual = attend(query, key, value, spans)
    expected = dense(query, key, value, spans)

    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)
    gradients = torch.autograd.grad(actual, inputs, upstream)
    for mine, other in zip(gradients, torch.autograd.grad(expected, inputs, upstream), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9)


def test_sliding_window_attention_is_rejected_in_shared_prefix_rows() -> None:
    x = torch.zeros(1, 1, 7, 4)

    with pytest.raises(ValueError, match=r"Identity uses sliding_window.*rowLayout: Padded"):
        shared_prefix_attention(
            torch.nn.Identity(),
            *(x, x, x, None),
            scaling=1.0,
            shared_prefix=spans_of((3,)),
            sliding_window=4,
        )
