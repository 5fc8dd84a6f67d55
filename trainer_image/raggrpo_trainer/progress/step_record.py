"""`StepRecord` and `FailedStep`: one training step as plain numbers."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from raggrpo_trainer.exchange.sample_metrics import SampleMetrics
from raggrpo_trainer.exchange.step_metrics import StepMetrics
from raggrpo_trainer.http.call_statistics import CallSummary

from .metrics import STEP_METRICS


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One completed step."""

    step: int
    samples: SampleMetrics
    trained: StepMetrics
    """Metrics of the ranks; memory and durations are maxima over all of them."""
    seconds: Mapping[str, float]
    """Seconds by stage (data, retrieve, generate, reward, train, sync), without overlapped time."""
    step_seconds: float
    retrieval: Mapping[str, CallSummary]
    """Calls by endpoint since the attempt started."""

    def scalars(self) -> dict[str, float]:
        """Return the STEP_METRICS by name, without those that are None."""
        seconds = max(self.step_seconds, 1e-9)
        values = {
            name: getattr(metrics, name)
            for metrics in (self.samples, self.trained)
            for name in STEP_METRICS
            if hasattr(metrics, name)
        }
        values["samples_per_second"] = self.samples.num_samples / seconds
        values["tokens_per_second"] = self.trained.num_sampled_tokens / seconds
        return {name: value for name, value in values.items() if value is not None}

    def stage_seconds(self) -> dict[str, float]:
        """Return the seconds by stage; the rest of the step is `other`."""
        other = max(0.0, self.step_seconds - sum(self.seconds.values()))
        return {**self.seconds, "other": other}

    def shares(self) -> dict[str, float]:
        """Return the share of the step of each stage and of each phase of training."""
        step_seconds = max(self.step_seconds, 1e-9)
        seconds = {**self.stage_seconds(), **self.trained.phase_seconds()}
        return {name: each / step_seconds for name, each in seconds.items()}

    def stage_tokens(self) -> dict[str, int]:
        """Return the tokens of the stages whose duration grows with them."""
        return {
            "generate": self.trained.num_sampled_tokens,
            "train": self.trained.num_trained_tokens,
        }


@dataclass(frozen=True, slots=True)
class FailedStep:
    """The step in which an error ended the attempt."""

    step: int
    retrieval: Mapping[str, CallSummary]
    """Calls by endpoint since the attempt started."""

    def event(self) -> dict[str, Any]:
        """Return the event in the history."""
        calls = {name: asdict(summary) for name, summary in self.retrieval.items()}
        return {"event": "failed_step", "step": self.step, "retrieval": calls}


def retrieval_scalars(retrieval: Mapping[str, CallSummary]) -> dict[str, float]:
    """Return the 95th percentile latency (seconds), failures and retries of each endpoint."""
    values: dict[str, float] = {}
    for name, calls in retrieval.items():
        if calls.answered:
            values[f"retrieval/{name}/p95"] = calls.p95
        values[f"retrieval/{name}/failures"] = sum(calls.failures.values())
        values[f"retrieval/{name}/retries"] = calls.retries
    return values
