"""`StepRecord`: what one training step did, as plain numbers; must not know where they go."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from raggrpo_trainer.exchange.step_metrics import StepMetrics
from raggrpo_trainer.http.json_service import CallSummary

_APART = frozenset(
    {
        *("step", "reward_parts", "trained", "seconds", "step_seconds", "retrieval"),
        *("non_finite", "rank_memory_bytes", "device_memory_bytes"),
    }
)
"""Not among the scalars of every step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """Means over samples leave failed ones out, and are None when all of them failed."""

    step: int
    reward_mean: float | None
    reward_std: float | None
    reward_parts: Mapping[str, float]
    """Mean of each term of the reward."""
    exact_match: float | None
    num_samples: int
    num_failed: int
    zero_variance: float
    """Share of the groups whose rewards are all equal: they teach nothing."""
    response_tokens: float
    """Mean number of sampled tokens of a completion."""
    trained: StepMetrics
    """What the ranks did; its memory is that of the rank that used most."""
    seconds: Mapping[str, float]
    """By stage (retrieve, generate, reward, train, sync): only what the step waited for."""
    step_seconds: float
    retrieval: Mapping[str, CallSummary]
    """By endpoint, since the attempt began."""

    def scalars(self) -> dict[str, float]:
        """Return the numbers by name, and the rates; means that do not exist are left out."""
        whole = max(self.step_seconds, 1e-9)
        numbers = {
            each.name: getattr(part, each.name)
            for part in (self, self.trained)
            for each in fields(part)
            if each.name not in _APART
        }
        numbers["samples_per_second"] = self.num_samples / whole
        numbers["tokens_per_second"] = self.trained.num_sampled_tokens / whole
        return {name: value for name, value in numbers.items() if value is not None}

    def retrieval_scalars(self) -> dict[str, float]:
        """Return what a person asks first of each endpoint: seconds of its calls, and failures."""
        numbers: dict[str, float] = {}
        for name, calls in self.retrieval.items():
            if calls.answered:
                numbers[f"retrieval/{name}/p95"] = calls.p95
            numbers[f"retrieval/{name}/failures"] = sum(calls.failures.values())
        return numbers

    def stage_seconds(self) -> dict[str, float]:
        """Return the seconds by stage, with the rest of the step as `other`; they add up to it."""
        other = max(0.0, self.step_seconds - sum(self.seconds.values()))
        return {**self.seconds, "other": other}
