"""The clipped GRPO objective over K flat tokens. Pure functions."""

import torch
from torch import Tensor

from raggrpo_trainer.exchange.objective import Objective
from raggrpo_trainer.exchange.step_metrics import LossMetrics

MISMATCH_TOLERANCE = 1e-3
"""Logprobs of trainer and engine count as equal (importance 1) if they differ by less, in nats.

Two fp32 implementations differ by about 5e-6, depending on how the engine batches requests. Without
this dead band the noise would reach the parameters, and a resumed run would not be bitwise equal to
an uninterrupted one. Changes of the policy cause much larger differences.
"""


def grpo_loss(
    logprobs: Tensor,  # [K], of the policy, with gradient
    *,
    rollout_logprobs: Tensor,  # [K], of the engine that sampled the tokens
    advantages: Tensor,  # [K]
    weights: Tensor,  # [K], from token_weights
    objective: Objective,
    old_logprobs: Tensor | None = None,  # [K], of the policy before this batch's first update
    ref_logprobs: Tensor | None = None,  # [K], of the frozen reference model
) -> LossMetrics[Tensor]:  # [K]; loss: []
    """Return the loss and the per-token metrics.

    loss = sum(weights * (-importance * clipped surrogate + kl_coefficient * kl_penalty)).
    The surrogate is PPO's with separate clip distances (DAPO, arXiv 2503.14476) and, optionally, a
    bound for tokens with negative advantage (dual clip, arXiv 1912.09729). Without `old_logprobs`
    this is the batch's first update: the policy is its own old policy, so the ratio is 1 and only
    its gradient matters. The importance weight min(exp(old - rollout), cap) corrects for the
    engine's different arithmetic or older weights; it has no gradient.
    """
    old = logprobs.detach() if old_logprobs is None else old_logprobs
    log_ratio = logprobs - old
    surrogate, is_clipped = _clipped_surrogate(log_ratio, advantages, objective)

    mismatch = old - rollout_logprobs
    counted = torch.where(mismatch.abs() <= MISMATCH_TOLERANCE, 0.0, mismatch)
    importance = counted.exp().clamp(max=objective.importance_cap)
    per_token = -importance * surrogate
    kl = torch.zeros_like(logprobs)
    if ref_logprobs is not None:
        kl = k3_divergence(logprobs.detach(), ref_logprobs)
        # One exponential of the sum: a product of two exponentials could be 0 · inf, which is NaN.
        sampled = (counted + log_ratio.detach()).exp().clamp(max=objective.importance_cap)
        penalty = kl_penalty(logprobs, ref_logprobs, sampled)
        per_token = per_token + objective.kl_coefficient * penalty
    return LossMetrics(
        loss=(weights * per_token).sum(),
        mismatch_mean=mismatch.abs(),
        mismatch_max=mismatch.abs(),
        importance_mean=importance,
        clip_fraction=is_clipped,
        kl=kl,
    )


def _clipped_surrogate(
    log_ratio: Tensor,  # [K], with gradient
    advantages: Tensor,  # [K]
    objective: Objective,
) -> tuple[Tensor, Tensor]:  # [K], [K] of bool
    """Return min(ratio * A, clipped ratio * A) per token, and whether the token is clipped.

    With `dual_clip`, the surrogate is at least dual_clip * A for A < 0. The surrogate of a clipped
    token, or of one with A = 0, is a constant: the token's ratio, which may be infinite, is not
    part of the graph, because the backward pass would multiply the ratio by zero.
    """
    fixed = log_ratio.detach().exp()
    bound = fixed.clamp(1.0 - objective.clip_ratio_low, 1.0 + objective.clip_ratio_high)
    is_clipped = bound * advantages < fixed * advantages
    if objective.dual_clip > 0:
        is_too_far = (advantages < 0) & (fixed > objective.dual_clip)
        bound = torch.where(is_too_far, objective.dual_clip, bound)
        is_clipped = is_clipped | is_too_far
    is_constant = is_clipped | (advantages == 0)
    ratio = torch.where(is_constant, 0.0, log_ratio).exp()
    return torch.where(is_constant, bound, ratio) * advantages, is_clipped


def kl_penalty(
    logprobs: Tensor,  # [K], of the policy, with gradient
    ref_logprobs: Tensor,  # [K]
    importance: Tensor,  # [K], ratio of policy to engine probability, without gradient
) -> Tensor:  # [K]
    """Return importance * k2, whose expected gradient is that of KL(policy || reference).

    Schulman's k1, k2 and k3 (http://joschu.net/blog/kl-approx.html) estimate the value of the
    divergence. As a loss they differ: the gradient of k3 ignores that the policy samples the tokens
    and is that of KL(reference || policy) instead (arXiv 2512.21852). The gradient of
    k2 = (log ratio)^2 / 2 on the policy's own samples is correct. It equals that of ratio * k3, the
    importance-weighted k3 of TRL and DeepSeek-V3.2, but without an exponential of a distance that
    grows during training. The weight is truncated as in the surrogate, which biases only
    tokens that have become much more likely since they were sampled.
    """
    log_ratio = logprobs - ref_logprobs
    return 0.5 * importance * log_ratio * log_ratio


def k3_divergence(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Return Schulman's k3 estimate of KL(policy || reference) per token, [K]; never negative.

    A metric only; the loss uses `kl_penalty`.
    """
    log_ratio = ref_logprobs - logprobs
    return log_ratio.exp() - log_ratio - 1.0
