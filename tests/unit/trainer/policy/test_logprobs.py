import pytest
import torch
from torch import Tensor

from raggrpo_api.memory.arithmetic import LOGIT_CHUNK
from raggrpo_trainer.policy.logprobs import LogitTransform, chunked_logprobs


def full_logprobs(
    hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None, temperature: float
) -> Tensor:
    logits = torch.nn.functional.linear(hidden, weight, bias).float() / temperature
    return logits.log_softmax(-1).gather(-1, targets[:, None]).squeeze(-1)


def inputs(
    tokens: int = 13, width: int = 8, vocabulary: int = 29, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype).requires_grad_()

    targets = torch.randint(vocabulary, (tokens,), generator=generator)
    return normal(tokens, width), normal(vocabulary, width), normal(vocabulary), targets


@pytest.mark.parametrize("chunk", [1, 5, 13, 100])
@pytest.mark.parametrize("has_bias", [True, False])
def test_chunked_logprobs_match_values_and_gradients_of_full_computation(
    chunk: int, has_bias: bool
) -> None:
    hidden, weight, given_bias, targets = inputs()
    bias = given_bias if has_bias else None
    leaves = [hidden, weight, *([bias] if bias is not None else [])]
    upstream = torch.linspace(-2, 3, len(targets))
    expected = full_logprobs(hidden, weight, targets, bias, 0.7)
    expected_gradients = torch.autograd.grad(expected, leaves, upstream)

    actual = chunked_logprobs(hidden, weight, targets, bias=bias, temperature=0.7, chunk=chunk)
    gradients = torch.autograd.grad(actual, leaves, upstream)

    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.row("D2")
@pytest.mark.parametrize("transform", [LogitTransform(0.25), LogitTransform(3.0, soft_cap=2.0)])
@pytest.mark.parametrize("compiled", [False, True])
def test_chunked_logprobs_match_with_scaled_and_capped_logits(
    transform: LogitTransform, compiled: bool
) -> None:
    hidden, weight, bias, targets = inputs()
    upstream = torch.linspace(-2, 3, len(targets))
    logits = torch.nn.functional.linear(hidden, weight, bias) * transform.scale
    if transform.soft_cap is not None:
        logits = transform.soft_cap * torch.tanh(logits / transform.soft_cap)
    expected = (logits / 0.7).log_softmax(-1).gather(-1, targets[:, None])[:, 0]
    expected_gradients = torch.autograd.grad(expected, [hidden, weight, bias], upstream)

    given = {"bias": bias, "transform": transform, "temperature": 0.7, "chunk": 5}
    actual = chunked_logprobs(hidden, weight, targets, **given, compiled=compiled)
    gradients = torch.autograd.grad(actual, [hidden, weight, bias], upstream)

    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)
    atol = 1e-5 if compiled else 1e-6  # compiled tanh differs
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-5, atol=atol)


def test_logprob_gradients_are_zero_without_tokens() -> None:
    hidden, weight, _, targets = inputs(tokens=0)
    gradients = torch.autograd.grad(
        chunked_logprobs(hidden, weight, targets).sum(), [hidden, weight]
    )

    assert gradients[0].shape == (0, 8)
    assert torch.equal(gradients[1], torch.zeros(29, 8))


def test_weight_gradient_is_accumulated_in_fp32_over_bf16_chunks() -> None:
    # 512 equal tokens: in bf16 a running sum would stop growing after 256 equal terms
    hidden = torch.ones(512, 1, dtype=torch.bfloat16)
    weight = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    logprobs = chunked_logprobs(hidden, weight, torch.zeros(512, dtype=torch.long), chunk=1)
    (gradient,) = torch.autograd.grad(logprobs.sum(), weight)
    assert gradient.flatten().tolist() == [256.0, -256.0]


def test_chunked_logprobs_hold_one_chunk_of_logits_in_memory() -> None:
    hidden, weight, _, targets = inputs(tokens=64, vocabulary=1000)

    with Sizes() as sizes:  # type: ignore[no-untyped-call]
        chunked_logprobs(hidden, weight, targets, chunk=4).sum().backward()  # type: ignore[no-untyped-call]

    assert sizes.largest == 1000 * 8  # the weight's gradient; logits of a chunk are 4 * 1000


def test_chunk_size_follows_logit_budget() -> None:
    vocabulary = LOGIT_CHUNK // 2
    hidden, weight = torch.zeros(5, 1), torch.zeros(vocabulary, 1)

    with Sizes() as sizes:  # type: ignore[no-untyped-call]
        chunked_logprobs(hidden, weight, torch.zeros(5, dtype=torch.long))

    assert sizes.largest == 2 * vocabulary


class Sizes(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the number of elements of the largest tensor created in the block."""

    largest = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):  # type: ignore[no-untyped-def]
        result = function(*arguments, **(options or {}))
        if isinstance(result, Tensor):
            self.largest = max(self.largest, result.numel())
        return result


def test_logprob_gradients_are_equal_in_second_backward_pass() -> None:
    hidden, weight, bias, targets = inputs()
    actual = chunked_logprobs(hidden, weight, targets, bias=bias, chunk=5).sum()
    first, second = (
        torch.autograd.grad(actual, [hidden, weight, bias], retain_graph=True) for _ in range(2)
    )
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)
