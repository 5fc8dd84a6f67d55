"""Key figures of a run, computed from its history (`raggrpo_api.trainer.history`). Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

Record = Mapping[str, Any]

END_STEPS = 10
"""Number of first and of last steps over which rewards are averaged."""


@dataclass(frozen=True, slots=True)
class Validation:
    """One validation on held-out prompts."""

    when: str
    """`before`, `during` or `after` training."""
    step: int
    exact_match: float
    reward_mean: float
    control_exact_match: float | None
    """Mean exact match with the passages of other prompts; None if it was not measured."""
    num_samples: int
    num_failed: int


@dataclass(frozen=True, slots=True)
class EndpointCalls:
    """Calls of all attempts to a retrieval endpoint; latencies are those of the newest attempt."""

    endpoint: str
    answered: int
    failures: dict[str, int]
    """Number of failed calls by cause."""
    p50: float | None
    """Median latency in seconds."""
    p95: float | None
    """95th percentile of the latency in seconds."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Key figures of a run; a figure is None if the history lacks its values."""

    steps: int
    reward_first: float | None
    """Mean reward of the first END_STEPS steps."""
    reward_last: float | None
    """Mean reward of the last END_STEPS steps."""
    exact_match_last: float | None
    """Mean exact match of the training samples of the last END_STEPS steps."""
    step_seconds: float | None
    """Median duration of a step in seconds."""
    samples_per_second: float | None
    """Samples divided by the time of all steps, excluding checkpoints and start-up."""
    tokens_per_second: float | None
    stage_seconds: dict[str, float]
    """Total seconds by stage over all steps, each step counted once, including checkpoint saves."""
    start_up_seconds: dict[int, dict[str, float]]
    """Seconds that each attempt spent in each stage until its first step was done."""
    validations: tuple[Validation, ...]
    retrieval: tuple[EndpointCalls, ...]


def figures(history: Sequence[Record], events: Sequence[Record]) -> Figures:
    """Return the key figures. `history`, with one record per step, and `events` are in order."""
    seconds = sum(r["step_seconds"] for r in history)
    return Figures(
        steps=len(history),
        reward_first=mean_of(history[:END_STEPS], "reward_mean"),
        reward_last=mean_of(history[-END_STEPS:], "reward_mean"),
        exact_match_last=mean_of(history[-END_STEPS:], "exact_match"),
        step_seconds=median(r["step_seconds"] for r in history) if history else None,
        samples_per_second=sum(r["num_samples"] for r in history) / seconds if seconds else None,
        tokens_per_second=(
            sum(r["num_sampled_tokens"] for r in history) / seconds if seconds else None
        ),
        stage_seconds=_stage_seconds(history, events),
        start_up_seconds=_start_up(events),
        validations=_validations(events),
        retrieval=_retrieval(history),
    )


def checkpoint_seconds(events: Iterable[Record]) -> dict[int, float]:
    """Return the save duration in seconds by step; the newest save of a step counts."""
    return {r["step"]: r["seconds"] for r in events if r["event"] == "checkpoint"}


def mean_of(records: Iterable[Record], name: str) -> float | None:
    """Return the mean of a field over the records that have it, or None if no record has it."""
    values = [r[name] for r in records if r.get(name) is not None]
    return mean(values) if values else None


def _stage_seconds(history: Sequence[Record], events: Sequence[Record]) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for record in history:
        for stage, seconds in record["seconds"].items():
            sums[stage] += seconds
    saved = checkpoint_seconds(events)
    return {**sums, "checkpoint": sum(saved.values())} if saved else dict(sums)


def _start_up(events: Sequence[Record]) -> dict[int, dict[str, float]]:
    """Return the seconds that each attempt spent in each stage until FirstStep was done."""
    spent: dict[int, dict[str, float]] = {}
    running: set[int] = set()
    for event in events:
        attempt = event["attempt"]
        if event["event"] != "stage" or attempt in running:
            continue
        stages = spent.setdefault(attempt, {})
        stages[event["left"]] = stages.get(event["left"], 0.0) + event["seconds"]
        if event["left"] == "FirstStep" and event.get("stage") != "WaitingForEndpoint":
            running.add(attempt)
    return spent


def _validations(events: Sequence[Record]) -> tuple[Validation, ...]:
    """Return the newest validation of each step; a resumed attempt may repeat a validation."""
    newest = {(e["step"], e["when"]): e for e in events if e["event"] == "validation"}
    return tuple(
        Validation(**{name: event[name] for name in Validation.__slots__})
        for _, event in sorted(newest.items())
    )


def _retrieval(history: Sequence[Record]) -> tuple[EndpointCalls, ...]:
    """Return the calls of all attempts; each attempt counts its own calls from zero."""
    by_attempt = {record["epoch"]: record["retrieval"] for record in history}
    calls_by_name: dict[str, list[Record]] = defaultdict(list)
    for endpoints in by_attempt.values():
        for name, calls in endpoints.items():
            calls_by_name[name].append(calls)
    return tuple(
        EndpointCalls(
            name,
            answered=sum(each["answered"] for each in calls),
            failures=dict(sum((Counter(each["failures"]) for each in calls), Counter())),
            p50=calls[-1]["p50"],
            p95=calls[-1]["p95"],
        )
        for name, calls in calls_by_name.items()
    )
