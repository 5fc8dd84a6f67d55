"""`StepRecord`: what one training step did, as plain numbers; must not know where they go."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from raggrpo_trainer.http.json_service import CallSummary

_MEMORY = ("rank_memory_bytes", "device_memory_bytes")
_APART = ("step", "reward_parts", "seconds", "step_seconds", "retrieval", *_MEMORY)
"""Not among the scalars of every step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """Means over samples leave failed ones out, and are None when all of them failed."""

    step: int
    reward_mean: float | None
    reward_std: float | None
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    """Mean of each term of the reward."""
    exact_match: float | None
    num_samples: int
    num_failed: int
    zero_variance: float
    """Share of the groups whose rewards are all equal: they teach nothing."""
    num_sampled_tokens: int
    num_trained_tokens: int
    num_positions: int
    """Positions that the forward passes computed, prompts and padding included."""
    response_tokens: float
    """Mean number of sampled tokens of a completion."""
    loss: float
    grad_norm: float
    """Before clipping."""
    learning_rate: float
    mismatch_mean: float
    """Of |trainer - rollout log-probability|."""
    mismatch_max: float
    importance_mean: float
    clip_fraction: float
    kl: float
    entropy: float
    seconds: Mapping[str, float]
    """By stage (retrieve, generate, reward, train, sync): only what the step waited for."""
    step_seconds: float
    rank_memory_bytes: int
    """What a rank's pod used of its memory after the step; the most of all ranks."""
    device_memory_bytes: int | None = None
    """The most of all ranks; None on CPUs."""
    retrieval: Mapping[str, CallSummary] = field(default_factory=dict)
    """By endpoint, since the attempt began."""

    def scalars(self) -> dict[str, float]:
        """Return the numbers by name, and the rates; means that do not exist are left out."""
        whole = max(self.step_seconds, 1e-9)
        numbers = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _APART}
        numbers["samples_per_second"] = self.num_samples / whole
        numbers["tokens_per_second"] = self.num_sampled_tokens / whole
        return {name: value for name, value in numbers.items() if value is not None}

    def stage_seconds(self) -> dict[str, float]:
        """Return the seconds by stage, with the rest of the step as `other`; they add up to it."""
        other = max(0.0, self.step_seconds - sum(self.seconds.values()))
        return {**self.seconds, "other": other}
