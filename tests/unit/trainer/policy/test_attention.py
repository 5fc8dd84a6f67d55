from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from raggrpo_api.spec.training import RowLayout
from raggrpo_trainer.policy.attention import concatenated_attention, shared_prefix_attention
from raggrpo_trainer.policy.packing import Span, items, micro_batch
from support.builders.policies import a_group

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
    """Return who attends to whom: the definition of a shared-prefix row, pair by pair."""
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
    made = [a_group(lengths, prompt=5 + 3 * number) for number, lengths in enumerate(groups)]
    work = items(made, [1.0] * sum(map(len, groups)), skip_zero_advantage=False)
    spans = micro_batch(work, RowLayout.SHARED_PREFIX).spans
    assert spans is not None
    return spans


@pytest.mark.parametrize("attend", [joined, concatenated])
@pytest.mark.parametrize(
    "groups",
    [[(6, 6, 6)], [(2, 9, 4)], [(6, 6), (2, 9, 4), (5,)], [(1, 1)], [(1, 4), (1,)], [(80, 3)]],
)
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_attention_and_its_gradient_equal_the_dense_mask(
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

    found = attend(query, key, value, spans)
    expected = dense(query, key, value, spans)

    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    gradients = torch.autograd.grad(found, inputs, upstream)
    for mine, other in zip(gradients, torch.autograd.grad(expected, inputs, upstream), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9)


def test_attention_that_is_more_than_softmax_is_refused_with_the_remedy() -> None:
    x = torch.zeros(1, 1, 7, 4)

    with pytest.raises(ValueError, match=r"Identity uses sliding_window.*rowLayout: Padded"):
        shared_prefix_attention(
            torch.nn.Identity(),
            *(x, x, x, None),
            scaling=1.0,
            shared_prefix=spans_of((3,)),
            sliding_window=4,
        )
