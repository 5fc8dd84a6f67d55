"""The clipped GRPO objective over flat tokens: pure functions that know neither rows nor ranks."""

import torch
from torch import Tensor

from raggrpo_trainer.exchange.objective import Objective
from raggrpo_trainer.exchange.step_metrics import LossMetrics

MISMATCH_TOLERANCE = 1e-3
"""Trainer and engine log-probabilities closer than this count as equal, with importance weight 1.
Two fp32 implementations differ by about 5e-6, depending on how the engine batches requests. Without
this dead band that noise would reach the parameters, and a resumed run could not be bitwise equal.
A real change of policy is far larger."""


def grpo_loss(
    logprobs: Tensor,  # [K], of the policy, with gradient
    *,
    rollout_logprobs: Tensor,  # [K], of the engine that sampled the tokens
    advantages: Tensor,  # [K]
    weights: Tensor,  # [K], from token_weights
    objective: Objective,
    old_logprobs: Tensor | None = None,  # [K], of the policy before this batch's first update
    ref_logprobs: Tensor | None = None,  # [K], of the frozen reference
) -> LossMetrics[Tensor]:  # [K]; loss: []
    """Return the loss and the per-token metrics.

    The loss is sum(weights * (importance * clipped surrogate + kl_coefficient * k3)).
    The surrogate is PPO's with separate clip distances (DAPO, arXiv 2503.14476). Without
    `old_logprobs` this is the batch's first update: the policy is its own old policy, so the ratio
    is 1 and only its gradient counts. The importance weight min(exp(old - rollout), cap) corrects
    for the engine's different arithmetic or older weights; no gradient flows through it.
    """
    old = logprobs.detach() if old_logprobs is None else old_logprobs
    ratio = torch.exp(logprobs - old)
    clipped_ratio = ratio.clamp(1.0 - objective.clip_ratio_low, 1.0 + objective.clip_ratio_high)
    surrogate = torch.minimum(ratio * advantages, clipped_ratio * advantages)

    mismatch = old - rollout_logprobs
    importance = torch.where(
        mismatch.abs() <= MISMATCH_TOLERANCE,
        torch.ones_like(mismatch),
        mismatch.exp().clamp(max=objective.importance_cap),
    )
    per_token = -importance * surrogate
    kl = torch.zeros_like(logprobs)
    if ref_logprobs is not None:
        kl = k3_divergence(logprobs, ref_logprobs)
        per_token = per_token + objective.kl_coefficient * kl
    return LossMetrics(
        loss=(weights * per_token).sum(),
        mismatch_mean=mismatch.abs(),
        mismatch_max=mismatch.abs(),
        importance_mean=importance,
        clip_fraction=clipped_ratio * advantages < ratio * advantages,
        kl=kl,
        entropy=-logprobs,
    )


def k3_divergence(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Return Schulman's k3 estimate of KL(policy || reference) per token: never negative."""
    log_ratio = ref_logprobs - logprobs
    return log_ratio.exp() - log_ratio - 1.0
