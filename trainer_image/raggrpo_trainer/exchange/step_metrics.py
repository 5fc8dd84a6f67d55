"""What one training step reports, and the sums it is made of; knows neither model nor torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """What one step did: over all ranks, except the last three, which are this rank's own.

    Means are over the trained tokens.
    """

    loss: float
    """Mean over the step's updates."""
    grad_norm: float
    """Before clipping; the largest of the step's updates."""
    learning_rate: float
    non_finite: bool
    """A loss or gradient norm was not finite: that update and those after it were not made."""
    num_sampled_tokens: int
    """Of the whole batch."""
    num_trained_tokens: int
    """Those that were computed: completions whose advantage is 0 are not."""
    num_positions: int
    """Positions of all rows, prompts and padding included."""
    mismatch_mean: float
    """Of |trainer - rollout log-probability|."""
    mismatch_max: float
    importance_mean: float
    clip_fraction: float
    kl: float
    entropy: float
    """Estimated by the mean of -log-probability of the sampled tokens."""
    seconds: dict[str, float]
    device_memory_bytes: int | None
    """The most that tensors held at once during the step; None on a CPU."""
    host_memory_bytes: int = 0
    """What the rank's pod used after the step; 0: not looked at."""


@dataclass(frozen=True, slots=True)
class UpdateSums:
    """The sums of one update over all ranks."""

    loss: float
    clipped: float
    mismatch: float
    importance: float
    kl: float
    surprisal: float
    num_tokens: float
    num_positions: float
    mismatch_max: float


def step_metrics(
    updates: list[tuple[UpdateSums, float]],
    *,
    learning_rate: float,
    non_finite: bool,
    num_sampled_tokens: int,
    seconds: dict[str, float],
    device_memory_bytes: int | None,
) -> StepMetrics:
    """Join the step's updates, each with its gradient norm."""
    sums = [update for update, _ in updates]
    tokens = sum(update.num_tokens for update in sums)
    per_token = 1.0 / max(1.0, tokens)
    return StepMetrics(
        loss=sum(update.loss for update in sums) / max(1, len(sums)),
        grad_norm=max((norm for _, norm in updates), default=0.0),
        learning_rate=learning_rate,
        non_finite=non_finite,
        num_sampled_tokens=num_sampled_tokens,
        num_trained_tokens=round(tokens),
        num_positions=round(sum(update.num_positions for update in sums)),
        mismatch_mean=per_token * sum(update.mismatch for update in sums),
        mismatch_max=max((update.mismatch_max for update in sums), default=0.0),
        importance_mean=per_token * sum(update.importance for update in sums),
        clip_fraction=per_token * sum(update.clipped for update in sums),
        kl=per_token * sum(update.kl for update in sums),
        entropy=per_token * sum(update.surprisal for update in sums),
        seconds=seconds,
        device_memory_bytes=device_memory_bytes,
    )
