import math
from typing import Any

import pytest
import torch
from torch import Tensor

from raggrpo_api.spec.algorithm import LossAggregation
from raggrpo_trainer.exchange.objective import token_weights
from raggrpo_trainer.exchange.step_metrics import LossMetrics
from raggrpo_trainer.policy.loss import grpo_loss
from support.builders.trainer.policies import make_objective

LOW, HIGH = 0.2, 0.28
"""The objective's clip distances."""


def loss_of(
    logprobs: list[float] | Tensor,
    *,
    advantages: list[float],
    rollout: list[float] | Tensor | None = None,
    old: list[float] | None = None,
    ref: list[float] | Tensor | None = None,
    **objective: Any,
) -> LossMetrics[Tensor]:
    given = torch.as_tensor(logprobs)
    return grpo_loss(
        given,
        rollout_logprobs=given.detach()
        if rollout is None
        else torch.as_tensor(rollout, dtype=given.dtype),
        advantages=torch.tensor(advantages, dtype=given.dtype),
        weights=torch.ones(len(given), dtype=given.dtype),
        objective=make_objective(**objective),
        old_logprobs=None if old is None else torch.tensor(old),
        ref_logprobs=None if ref is None else torch.as_tensor(ref, dtype=given.dtype),
    )


def gradient_of(logprobs: list[float], **arguments: Any) -> list[float]:
    leaf = torch.tensor(logprobs, requires_grad=True)
    (gradient,) = torch.autograd.grad(loss_of(leaf, **arguments).loss, leaf)
    return [float(value) for value in gradient]


def test_loss_is_policy_gradient_for_single_update() -> None:
    terms = loss_of([-1.0, -2.0], advantages=[0.5, -3.0])
    assert terms.loss.item() == pytest.approx(-0.5 + 3.0)
    assert gradient_of([-1.0, -2.0], advantages=[0.5, -3.0]) == [-0.5, 3.0]
    assert terms.clip_fraction.sum().item() == 0


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected_loss", "expected_gradient"),
    [
        (1.5, 2.0, -1.28 * 2.0, 0.0),  # raised enough already
        (1.2, 2.0, -1.2 * 2.0, -1.2 * 2.0),
        (0.5, 2.0, -0.5 * 2.0, -0.5 * 2.0),  # a good token that fell is always raised again
        (0.5, -2.0, 0.8 * 2.0, 0.0),  # lowered enough already
        (0.9, -2.0, 0.9 * 2.0, 0.9 * 2.0),
        (1.5, -2.0, 1.5 * 2.0, 1.5 * 2.0),  # a bad token that rose is always lowered again
    ],
)
def test_clipping_uses_separate_bounds_for_each_side(
    ratio: float, advantage: float, expected_loss: float, expected_gradient: float
) -> None:
    new, old = [-1.0 + math.log(ratio)], [-1.0]
    terms = loss_of(new, advantages=[advantage], old=old, rollout=old)
    gradient = gradient_of(new, advantages=[advantage], old=old, rollout=old)

    assert terms.loss.item() == pytest.approx(expected_loss, rel=1e-5)
    assert gradient == [pytest.approx(expected_gradient, rel=1e-5)]
    assert terms.clip_fraction.sum().item() == (1 if expected_gradient == 0.0 else 0)


def test_importance_weight_is_capped_ratio_of_old_policy_to_engine() -> None:
    # ratios 0.5, 1.5 and 5, the last capped at 2
    rollout = [-1.0 - math.log(ratio) for ratio in (0.5, 1.5, 5.0)]
    terms = loss_of([-1.0] * 3, advantages=[1.0] * 3, rollout=rollout)
    gradient = gradient_of([-1.0] * 3, advantages=[1.0] * 3, rollout=rollout)

    assert gradient == pytest.approx([-0.5, -1.5, -2.0], rel=1e-6)
    assert terms.importance_mean.sum().item() == pytest.approx(4.0)
    assert terms.mismatch_mean.sum().item() == pytest.approx(
        math.log(2) + math.log(1.5) + math.log(5)
    )
    assert terms.mismatch_max.max().item() == pytest.approx(math.log(5))


def test_engine_noise_within_tolerance_does_not_change_loss_or_gradient() -> None:
    logprobs, noisy = [-1.0, -2.0], [-1.0009, -1.9995]
    exact = loss_of(logprobs, advantages=[0.3, -0.7])
    noised = loss_of(logprobs, advantages=[0.3, -0.7], rollout=noisy)

    assert noised.loss.item() == exact.loss.item()
    assert noised.importance_mean.sum().item() == 2.0
    assert noised.mismatch_max.max().item() == pytest.approx(9e-4, rel=1e-2)


def test_importance_weight_applies_to_mismatch_beyond_tolerance() -> None:
    terms = loss_of([-1.0], advantages=[1.0], rollout=[-1.002])
    assert terms.importance_mean.sum().item() == pytest.approx(math.exp(0.002), rel=1e-6)


def exact_gradient(loss: Tensor, leaf: Tensor) -> list[float]:
    (gradient,) = torch.autograd.grad(loss, leaf)
    return [float(value) for value in gradient]


@pytest.mark.parametrize("rollout", [[-1.0, -2.0, -0.5], [-1.2, -1.7, -0.8]])
def test_kl_gradient_matches_importance_weighted_k3_estimator(rollout: list[float]) -> None:
    reference = torch.tensor([-0.4, -2.6, -0.9], dtype=torch.float64)
    sampled = torch.tensor(rollout, dtype=torch.float64)
    ours = torch.tensor([-1.0, -2.0, -0.5], dtype=torch.float64, requires_grad=True)
    plain = ours.detach().clone().requires_grad_()
    log_ratio = reference - plain
    k3 = torch.exp(log_ratio) - log_ratio - 1
    expected = exact_gradient((torch.exp(plain - sampled) * k3).sum(), plain)

    terms = loss_of(ours, advantages=[0.0] * 3, rollout=sampled, ref=reference, kl_coefficient=1.0)
    assert exact_gradient(terms.loss, ours) == pytest.approx(expected, rel=1e-12)


def test_expected_kl_gradient_matches_exact_kl_from_policy_to_reference() -> None:
    # all four tokens at once, each weighted by its probability: the expectation over samples
    logits = torch.tensor([0.3, -1.0, 0.8, 0.1], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([1.0, 0.2, -0.5, 0.0], dtype=torch.float64).log_softmax(0)
    policy = logits.log_softmax(0)
    expected = exact_gradient((policy.exp() * (policy - reference)).sum(), logits)

    again = logits.log_softmax(0)
    terms = grpo_loss(
        again,
        rollout_logprobs=again.detach(),
        advantages=torch.zeros(4, dtype=torch.float64),
        weights=again.detach().exp(),
        objective=make_objective(kl_coefficient=1.0),
        ref_logprobs=reference,
    )
    assert exact_gradient(terms.loss, logits) == pytest.approx(expected, abs=1e-12)


def test_kl_importance_weight_follows_policy_in_later_updates_and_is_capped() -> None:
    # sampled at -1, now at -1 + log 1.5 and -1 + log 8: weights 1.5 and, capped, 2
    new = [-1.0 + math.log(1.5), -1.0 + math.log(8.0)]
    gradient = gradient_of(
        new,
        advantages=[0.0] * 2,
        old=[-1.0] * 2,
        rollout=[-1.0] * 2,
        ref=[-1.0] * 2,
        kl_coefficient=0.1,
    )
    assert gradient == pytest.approx(
        [0.1 * 1.5 * math.log(1.5), 0.1 * 2.0 * math.log(8.0)], rel=1e-5
    )


def test_kl_metric_is_unweighted_k3_while_gradient_is_importance_weighted() -> None:
    # log ratio reference / policy is 0.5
    terms = loss_of([-1.0], advantages=[0.0], ref=[-0.5], kl_coefficient=0.1)
    gradient = gradient_of([-1.0], advantages=[0.0], ref=[-0.5], kl_coefficient=0.1)
    assert terms.kl.sum().item() == pytest.approx(math.exp(0.5) - 1.5, rel=1e-5)
    assert terms.loss.item() == pytest.approx(0.1 * 0.5**2 / 2, rel=1e-5)
    assert gradient == [pytest.approx(-0.1 * 0.5, rel=1e-5)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("new", "old", "advantage", "changes"),
    [
        (-1.0, -500.0, 1.0, {}),  # a good token that rose beyond exp's range
        (-500.0, -1.0, -1.0, {}),  # a bad token that fell as far
        (-1.0, -500.0, 0.0, {}),  # no advantage
        (-1.0, -500.0, 0.0, {"kl_coefficient": 0.1}),
        (-500.0, -1.0, -1.0, {"kl_coefficient": 0.1}),
        (-1.0, -500.0, -1.0, {"dual_clip": 3.0}),
    ],
)
def test_clipped_token_loss_is_finite_for_any_ratio(
    dtype: torch.dtype, new: float, old: float, advantage: float, changes: dict[str, Any]
) -> None:
    leaf = torch.tensor([new, -1.0], dtype=dtype, requires_grad=True)
    terms = grpo_loss(
        leaf,
        rollout_logprobs=torch.tensor([old, -1.0], dtype=dtype),
        advantages=torch.tensor([advantage, 1.0], dtype=dtype),
        weights=torch.ones(2, dtype=dtype),
        objective=make_objective(**changes),
        old_logprobs=torch.tensor([old, -1.0], dtype=dtype),
        ref_logprobs=torch.tensor([-2.0, -1.0], dtype=dtype)
        if "kl_coefficient" in changes
        else None,
    )
    gradient = exact_gradient(terms.loss, leaf)
    assert math.isfinite(terms.loss.item())
    assert all(math.isfinite(value) for value in gradient)
    assert gradient[1] == -1.0  # the other token of the batch is unaffected
    if "kl_coefficient" not in changes:
        assert gradient[0] == 0.0


@pytest.mark.parametrize("dual_clip", [0.0, 3.0])
def test_surrogate_is_bitwise_equal_to_plain_formula_when_finite(dual_clip: float) -> None:
    generator = torch.Generator().manual_seed(3)
    new = torch.randn(4096, generator=generator).requires_grad_()
    old, advantages = torch.randn(2, 4096, generator=generator)
    plain = new.detach().clone().requires_grad_()
    ratio = torch.exp(plain - old)
    clipped = ratio.clamp(1 - LOW, 1 + HIGH)
    surrogate = torch.minimum(ratio * advantages, clipped * advantages)
    if dual_clip:
        floor = torch.maximum(surrogate, dual_clip * advantages)
        surrogate = torch.where(advantages < 0, floor, surrogate)
    terms = grpo_loss(
        new,
        rollout_logprobs=old,
        advantages=advantages,
        weights=torch.ones(4096),
        objective=make_objective(dual_clip=dual_clip),
        old_logprobs=old,
    )
    assert terms.loss.item() == -surrogate.sum().item()
    assert exact_gradient(terms.loss, new) == exact_gradient(-surrogate.sum(), plain)


def test_dual_clip_bounds_loss_of_tokens_with_negative_advantage() -> None:
    # ratios 2 and 5, advantage -2; the bound is at ratio 3
    new, old = [-3.0 + math.log(2.0), -3.0 + math.log(5.0)], [-3.0] * 2
    terms = loss_of(new, advantages=[-2.0] * 2, old=old, rollout=old, dual_clip=3.0)
    gradient = gradient_of(new, advantages=[-2.0] * 2, old=old, rollout=old, dual_clip=3.0)
    assert terms.loss.item() == pytest.approx(2.0 * 2 + 3.0 * 2, rel=1e-5)
    assert gradient == [pytest.approx(4.0, rel=1e-5), 0.0]
    assert terms.clip_fraction.tolist() == [False, True]


def test_loss_without_tokens_is_differentiable_zero() -> None:
    leaf = torch.zeros(0, requires_grad=True)
    terms = loss_of(leaf, advantages=[])
    assert terms.loss.item() == 0.0
    assert terms.mismatch_max.shape == (0,)
    assert torch.autograd.grad(terms.loss, leaf)[0].shape == (0,)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        # four sampled tokens in the batch
        (LossAggregation.TOKEN_MEAN, [1 / 4, 1 / 4, 0.0]),
        # three sequences, of 1, 3 and 0 sampled tokens
        (LossAggregation.SEQUENCE_MEAN, [1 / 3, 1 / 9, 0.0]),
        # three sequences of at most 16 tokens
        (LossAggregation.FIXED_LENGTH, [1 / 48, 1 / 48, 1 / 48]),
    ],
)
def test_token_weights_include_denominator_of_aggregation(
    aggregation: LossAggregation, expected: list[float]
) -> None:
    assert token_weights([1, 3, 0], make_objective(loss_aggregation=aggregation)) == pytest.approx(
        expected
    )


@pytest.mark.parametrize("aggregation", LossAggregation)
def test_rows_of_a_sample_weigh_as_one_completion(aggregation: LossAggregation) -> None:
    objective = make_objective(loss_aggregation=aggregation)

    whole, other = token_weights([4, 2], objective)
    rows = token_weights([3, 2, 1], objective, ["forked", "other", "forked"])

    assert rows == [whole, other, whole]


@pytest.mark.parametrize("aggregation", LossAggregation)
def test_token_weights_are_finite_without_sampled_tokens(aggregation: LossAggregation) -> None:
    weights = token_weights([0, 0], make_objective(loss_aggregation=aggregation))
    assert len(weights) == 2
    assert all(math.isfinite(weight) for weight in weights)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        (LossAggregation.TOKEN_MEAN, -(1.0 * 1 - 2.0 * 3) / 4),
        (LossAggregation.SEQUENCE_MEAN, -(1.0 - 2.0) / 2),
        (LossAggregation.FIXED_LENGTH, -(1.0 * 1 - 2.0 * 3) / (2 * 16)),
    ],
)
def test_weighted_token_sum_equals_aggregated_loss(
    aggregation: LossAggregation, expected: float
) -> None:
    # one sequence of 1 token with advantage 1, one of 3 tokens with advantage -2
    objective = make_objective(loss_aggregation=aggregation)
    short, long = token_weights([1, 3], objective)
    terms = grpo_loss(
        torch.full((4,), -1.0),
        rollout_logprobs=torch.full((4,), -1.0),
        advantages=torch.tensor([1.0, -2.0, -2.0, -2.0]),
        weights=torch.tensor([short, long, long, long]),
        objective=objective,
    )

    assert terms.loss.item() == pytest.approx(expected)
