"""The flash kernels of shared-prefix rows against exact attention, on a real GPU."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from raggrpo_trainer.policy.attention import concatenated_attention
from raggrpo_trainer.policy.packing import Span
from raggrpo_trainer.policy.segment_attention import has_flash, segment_attention

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not Path("/dev/nvidia0").exists(), reason="needs an NVIDIA GPU"),
]
SCALING = 0.1
SPANS = (
    Span(0, 300, ((2, 40), (1, 41), (3, 130))),
    Span(811, 17, ((1, 1),)),
    Span(829, 5, ()),
    Span(834, 200, ((8, 64),)),
)
LENGTH = 834 + 200 + 8 * 64


def inputs(heads: int, groups: int, size: int, dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(0)
    return [
        torch.randn(1, LENGTH, number, size, device="cuda").to(dtype).transpose(1, 2)
        for number in (heads, groups, groups)
    ]


@pytest.mark.row("A32", "G4")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("heads", "groups", "size"), [(14, 2, 64), (12, 2, 128), (4, 4, 256)])
def test_flash_attention_matches_exact_values_and_gradients(
    dtype: torch.dtype, heads: int, groups: int, size: int
) -> None:
    tensors = inputs(heads, groups, size, dtype)
    assert has_flash(*tensors)
    ours = [x.clone().requires_grad_() for x in tensors]
    exact = [x.double().requires_grad_() for x in tensors]
    upstream = torch.randn(1, LENGTH, heads, size, device="cuda").to(dtype)

    actual = segment_attention(*ours, SCALING, SPANS)
    expected = concatenated_attention(*exact, SCALING, SPANS)

    mine = (actual, *torch.autograd.grad(actual, ours, upstream))
    true = (expected, *torch.autograd.grad(expected, exact, upstream.double()))
    bound = 1e-2 if dtype is torch.bfloat16 else 2e-3
    for one, other in zip(mine, true, strict=True):
        assert ((one.double() - other).norm() / other.norm()).item() < bound


def test_flash_attention_is_unavailable_in_fp32() -> None:
    assert not has_flash(*inputs(4, 2, 64, torch.float32))
