"""`StepRecord`: one training step as plain numbers; must not know where they go."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from raggrpo_trainer.exchange.step_metrics import StepMetrics
from raggrpo_trainer.http.call_statistics import CallSummary

_NO_SCALARS = {"reward_parts", "non_finite", "rank_memory_bytes", "device_memory_bytes"}
_NO_SCALARS |= {"weight_update_ratio"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleMetrics:
    """What a step's samples were; means exclude failed ones, and are None if all failed."""

    reward_mean: float | None
    reward_std: float | None
    reward_parts: Mapping[str, float]
    """Mean of each term of the reward."""
    exact_match: float | None
    num_samples: int
    num_failed: int
    zero_variance: float
    """Share of groups whose rewards are all equal, from which nothing is learned."""
    response_tokens: float
    """Mean number of sampled tokens per completion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One finished step."""

    step: int
    samples: SampleMetrics
    trained: StepMetrics
    """The ranks' metrics; memory is that of the rank that used most."""
    seconds: Mapping[str, float]
    """By stage (retrieve, generate, reward, train, sync); only time the step waited for it."""
    step_seconds: float
    retrieval: Mapping[str, CallSummary]
    """By endpoint, since the attempt began."""

    def scalars(self) -> dict[str, float]:
        """Return the numbers and rates by name, without those that are None."""
        whole = max(self.step_seconds, 1e-9)
        numbers = {
            each.name: getattr(part, each.name)
            for part in (self.samples, self.trained)
            for each in fields(part)
            if each.name not in _NO_SCALARS
        }
        numbers["samples_per_second"] = self.samples.num_samples / whole
        numbers["tokens_per_second"] = self.trained.num_sampled_tokens / whole
        return {name: value for name, value in numbers.items() if value is not None}

    def retrieval_scalars(self) -> dict[str, float]:
        """Return the 95th percentile of latency, in seconds, and the failures of each endpoint."""
        numbers: dict[str, float] = {}
        for name, calls in self.retrieval.items():
            if calls.answered:
                numbers[f"retrieval/{name}/p95"] = calls.p95
            numbers[f"retrieval/{name}/failures"] = sum(calls.failures.values())
        return numbers

    def stage_seconds(self) -> dict[str, float]:
        """Return the seconds by stage, with the rest of the step as `other`."""
        other = max(0.0, self.step_seconds - sum(self.seconds.values()))
        return {**self.seconds, "other": other}
