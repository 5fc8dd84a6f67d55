"""Key figures of a run, computed from its history (`raggrpo_api.trainer.history`). Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

Record = Mapping[str, Any]

END_STEPS = 10
"""Number of first and of last steps over which rewards are averaged."""
PHASES = ("forward", "backward", "optimizer")
"""Phases of the stage `train`; the history has their durations as `<phase>_seconds`."""


@dataclass(frozen=True, slots=True)
class Validation:
    """One validation on held-out prompts."""

    when: str
    """`before`, `during` or `after` training."""
    step: int
    exact_match: float | None
    """Mean exact match; None if no prompt has a reference answer."""
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
    """Number of failed calls by cause, most frequent first."""
    retries: int
    """Number of repeated requests."""
    p50: float | None
    """Median latency in seconds."""
    p95: float | None
    """95th percentile of the latency in seconds."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Medians over the steps, without start-up; None without steps."""

    step_seconds: float | None
    sample_seconds: float | None
    """Seconds per sample: the duration of a step divided by its samples."""
    tokens_per_second: float | None
    """Sampled tokens of a step divided by its duration."""
    stage_seconds: dict[str, float]
    """Seconds in each stage of a step, and of a checkpoint."""
    phase_seconds: dict[str, float]
    """Seconds in each phase of the stage `train`."""
    shares: dict[str, float]
    """Shares of a step's duration by stage and phase."""
    device_utilization: float | None
    """Share of time in which a GPU ran a kernel; None if it was not measured."""


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """Maxima of the measured steps in bytes; None if there is no measurement."""

    driver: float | None
    rank: float | None
    device: float | None
    device_reserved: float | None


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
    samples_per_step: float | None
    """Mean number of samples of a step."""
    response_tokens: float | None
    """Mean number of sampled tokens per completion."""
    pace: Pace
    memory: PeakMemory
    start_up_seconds: dict[int, dict[str, float]]
    """Seconds that each attempt spent in each stage until its first step was done."""
    validations: tuple[Validation, ...]
    retrieval: tuple[EndpointCalls, ...]


def figures(history: Sequence[Record], events: Sequence[Record]) -> Figures:
    """Return the key figures. `history`, with one record per step, and `events` are in order."""
    return Figures(
        steps=len(history),
        reward_first=mean_of(history[:END_STEPS], "reward_mean"),
        reward_last=mean_of(history[-END_STEPS:], "reward_mean"),
        exact_match_last=mean_of(history[-END_STEPS:], "exact_match"),
        samples_per_step=mean_of(history, "num_samples"),
        response_tokens=mean_of(history, "response_tokens"),
        pace=_pace(history, events),
        memory=PeakMemory(
            driver=_max_of(history, "host_memory_bytes"),
            rank=_max_of(history, "rank_memory_bytes"),
            device=_max_of(history, "device_memory_bytes"),
            device_reserved=_max_of(history, "device_memory_reserved_bytes"),
        ),
        start_up_seconds=_start_up(events),
        validations=_validations(events),
        retrieval=_retrieval(history, events),
    )


def checkpoint_seconds(events: Iterable[Record]) -> dict[int, float]:
    """Return the save duration in seconds by step; the newest save of a step counts."""
    return {r["step"]: r["seconds"] for r in events if r["event"] == "checkpoint"}


def mean_of(records: Iterable[Record], name: str) -> float | None:
    """Return the mean of a field over the records that have it, or None if no record has it."""
    values = _values(records, name)
    return mean(values) if values else None


def _values(records: Iterable[Record], name: str) -> list[float]:
    """Return the values of a field in the records that have it."""
    return [r[name] for r in records if r.get(name) is not None]


def _pace(history: Sequence[Record], events: Sequence[Record]) -> Pace:
    saved = [{"checkpoint": seconds} for seconds in checkpoint_seconds(events).values()]
    return Pace(
        step_seconds=_median(_values(history, "step_seconds")),
        sample_seconds=_median(
            r["step_seconds"] / max(1, r["num_samples"])
            for r in _with_values(history, "step_seconds", "num_samples")
        ),
        tokens_per_second=_median(
            r["num_sampled_tokens"] / max(1e-9, r["step_seconds"])
            for r in _with_values(history, "step_seconds", "num_sampled_tokens")
        ),
        stage_seconds=_medians([*(record.get("seconds", {}) for record in history), *saved]),
        phase_seconds=_medians(_phase_seconds(record) for record in history),
        shares=_medians(record.get("shares", {}) for record in history),
        device_utilization=_median(_values(history, "device_utilization")),
    )


def _with_values(records: Iterable[Record], *names: str) -> Iterator[Record]:
    return (r for r in records if all(r.get(name) is not None for name in names))


def _phase_seconds(record: Record) -> dict[str, float]:
    seconds = {phase: record.get(f"{phase}_seconds") for phase in PHASES}
    return {phase: value for phase, value in seconds.items() if value is not None}


def _medians(records: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each value over the records that have it."""
    values: dict[str, list[float]] = defaultdict(list)
    for record in records:
        for name, value in record.items():
            values[name].append(value)
    return {name: median(each) for name, each in values.items()}


def _median(values: Iterable[float]) -> float | None:
    ordered = [*values]
    return median(ordered) if ordered else None


def _max_of(records: Iterable[Record], name: str) -> float | None:
    return max(_values(records, name), default=None)


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


def _retrieval(history: Sequence[Record], events: Sequence[Record]) -> tuple[EndpointCalls, ...]:
    """Return the calls of all attempts; each attempt counts its own calls from zero.

    A failed step is the last of its attempt and contains the calls that made it fail.
    """
    failed = (event for event in events if event["event"] == "failed_step")
    by_attempt = {record["epoch"]: record.get("retrieval", {}) for record in (*history, *failed)}
    calls_by_name: dict[str, list[Record]] = defaultdict(list)
    failures: dict[str, Counter[str]] = defaultdict(Counter)
    for endpoints in by_attempt.values():
        for name, calls in endpoints.items():
            calls_by_name[name].append(calls)
            failures[name].update(calls["failures"])
    return tuple(
        EndpointCalls(
            name,
            answered=sum(each["answered"] for each in calls),
            failures=dict(failures[name].most_common()),
            retries=sum(each.get("retries", 0) for each in calls),
            p50=calls[-1]["p50"],
            p95=calls[-1]["p95"],
        )
        for name, calls in calls_by_name.items()
    )
