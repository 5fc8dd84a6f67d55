"""Logprobs of the LM head in BF16 on a GPU, eager and compiled."""

from pathlib import Path

import pytest
import torch

from raggrpo_trainer.policy.logprobs import chunked_logprobs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not Path("/dev/nvidia0").exists(), reason="needs an NVIDIA GPU"),
]


@pytest.mark.parametrize("compiled", [False, True])
def test_bf16_logprobs_and_gradients_match_exact_values(compiled: bool) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(700, 256, device="cuda").to(torch.bfloat16).requires_grad_()
    weight = (0.1 * torch.randn(5003, 256, device="cuda")).to(torch.bfloat16).requires_grad_()
    targets = torch.randint(5003, (700,), device="cuda")
    upstream = torch.randn(700, device="cuda")
    exact = [x.detach().double().requires_grad_() for x in (hidden, weight)]
    logits = (exact[0] @ exact[1].T) / 0.7
    expected = logits.log_softmax(-1).gather(-1, targets[:, None])[:, 0]

    actual = chunked_logprobs(
        hidden, weight, targets, temperature=0.7, chunk=256, compiled=compiled
    )

    assert (actual - expected).abs().max().item() < 0.03  # logits are rounded to bf16
    mine = torch.autograd.grad(actual, (hidden, weight), upstream)
    true = torch.autograd.grad(expected, exact, upstream.double())
    for one, other in zip(mine, true, strict=True):
        assert ((one.double() - other).norm() / other.norm()).item() < 1e-2
