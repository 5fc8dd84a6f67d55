"""Key figures of a run from its history (`raggrpo_api.trainer.history`). Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

Record = Mapping[str, Any]

END_STEPS = 10
"""Steps at the start and the end of the run whose mean rewards are compared."""


@dataclass(frozen=True, slots=True)
class Validation:
    """One validation on held-out prompts."""

    when: str
    """before, during or after training."""
    step: int
    exact_match: float
    reward_mean: float
    control_exact_match: float | None
    """With the passages of other prompts."""
    num_samples: int
    num_failed: int


@dataclass(frozen=True, slots=True)
class EndpointCalls:
    """Calls of a retrieval endpoint by all attempts; seconds are those of the newest attempt."""

    endpoint: str
    answered: int
    failures: dict[str, int]
    """By cause."""
    p50: float | None
    p95: float | None


@dataclass(frozen=True, slots=True)
class Figures:
    """Key figures of a run; None if the history lacks the value."""

    steps: int
    reward_first: float | None
    """Mean reward of the first 10 steps."""
    reward_last: float | None
    exact_match_last: float | None
    """Mean exact match of the training samples of the last 10 steps."""
    step_seconds: float | None
    """Median."""
    samples_per_second: float | None
    """Samples over the time of all steps, without checkpoints and start-up."""
    tokens_per_second: float | None
    stage_seconds: dict[str, float]
    """Totals over all steps, each counted once, plus checkpoints."""
    start_up_seconds: dict[int, dict[str, float]]
    """By attempt: seconds in each stage until its first step was done."""
    validations: tuple[Validation, ...]
    retrieval: tuple[EndpointCalls, ...]


def figures(history: Sequence[Record], events: Sequence[Record]) -> Figures:
    """Return the figures for steps (each once, in order) and events (in order)."""
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
    """Return how long saving took, by step; the newest save of a step counts."""
    return {r["step"]: r["seconds"] for r in events if r["event"] == "checkpoint"}


def mean_of(records: Iterable[Record], name: str) -> float | None:
    """Return the mean over the records that have the field, or None if none has it."""
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
    """Return the seconds each attempt spent in each stage up to the end of FirstStep."""
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
    """Return the newest validation of each step, since a resumed attempt may repeat one."""
    newest = {(e["step"], e["when"]): e for e in events if e["event"] == "validation"}
    return tuple(
        Validation(**{name: event[name] for name in Validation.__slots__})
        for _, event in sorted(newest.items())
    )


def _retrieval(history: Sequence[Record]) -> tuple[EndpointCalls, ...]:
    """Sum the calls of all attempts; each attempt counts from zero."""
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
