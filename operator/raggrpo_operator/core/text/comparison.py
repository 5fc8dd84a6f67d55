"""Compare the results of two runs, or of two segments of a run, as text. Pure."""

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from typing import Any

from raggrpo_api.memory.arithmetic import GIB
from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.trainer.progress import Segment
from raggrpo_operator.core.spec.resolve import Origin, Resolved
from raggrpo_operator.core.state.conditions import not_learning_reason

from .figures import PHASES, Figures, Record, figures

WIDTHS = (36, 25, 25, 8)
"""Widths of the columns name, A, B and difference in characters."""
PER_RUN = frozenset({"checkpoint.path", "monitoring.logDir"})
"""Fields that always differ between two runs."""
Numbers = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Run:
    """A run, or a segment of a run, with its records."""

    name: str
    """Job folder, name of the job in a cluster, or steps of a segment."""
    job: str
    resolved: Resolved
    status: JobStatus
    history: Sequence[Record]
    events: Sequence[Record]
    problem: str = ""
    """What the history lacks; "" if nothing."""
    segment: Segment | None = None
    """The segment that the records belong to, with the values that it changed."""


def last_segments(run: Run) -> tuple[Run, Run]:
    """Return the last two segments that have steps. Raises ValueError if there is only one."""
    end = run.history[-1]["step"] + 1 if run.history else 1
    starts = [1, *(segment.first_step for segment in run.status.segments), end]
    segments = [_segment(run, first, following) for first, following in pairwise(starts)]
    with_steps = [segment for segment in segments if segment.history]
    if len(with_steps) < 2:
        raise ValueError(f"{run.name} has steps of one segment only: specify two jobs")
    return with_steps[-2], with_steps[-1]


def _segment(run: Run, first: int, end: int) -> Run:
    """Return the segment with the steps from `first` up to but excluding `end`."""
    history = [record for record in run.history if first <= record["step"] < end]
    numbers = {record["attempt"] for record in history}
    attempts = [attempt for attempt in run.status.attempts if attempt.number in numbers]
    return replace(
        run,
        name=f"steps {first} to {end - 1}",
        status=replace(run.status, attempts=attempts),
        history=history,
        events=[event for event in run.events if event["attempt"] in numbers],
        segment=next(
            (s for s in run.status.segments if s.first_step == first), Segment(first_step=1)
        ),
    )


def comparison(a: Run, b: Run) -> Iterator[str]:
    """Yield the lines of the table; the last column is the difference of B in percent of A."""
    figures_a, figures_b = figures(a.history, a.events), figures(b.history, b.events)
    yield _line("", a.name, b.name, "B vs. A")
    yield _line("job", a.job, b.job)
    yield _line("phase", a.status.phase, b.status.phase)
    reasons = [not_learning_reason(each.status) for each in (a, b)]
    if any(reasons):
        yield _line("not learning", *(reason or "-" for reason in reasons))
    yield from _numbers(_outcome(a, figures_a), _outcome(b, figures_b))
    for title, rows in _SECTIONS.items():
        lines = [*_numbers(rows(figures_a), rows(figures_b))]
        if lines:
            yield from ("", title, *lines)
    yield from (f"{run.name}: {run.problem}" for run in (a, b) if run.problem)
    yield from ("", "Set differently")
    yield from _differences(a.resolved, b.resolved) if b.segment is None else _changes(b.segment)


def _outcome(run: Run, results: Figures) -> Numbers:
    return {
        "steps": results.steps,
        "restarts": run.status.restarts.total if run.segment is None else None,
        "lost steps": sum(attempt.lost_steps for attempt in run.status.attempts),
        "seconds of all attempts": sum(attempt.seconds for attempt in run.status.attempts),
    }


def _rewards(run: Figures) -> Numbers:
    numbers: dict[str, float | None] = {
        "reward, first 10 steps": run.reward_first,
        "reward, last 10 steps": run.reward_last,
        "exact match, last 10 steps": run.exact_match_last,
    }
    for validation in run.validations:
        numbers[f"held-out reward {validation.when}"] = validation.reward_mean
        numbers[f"held-out exact match {validation.when}"] = validation.exact_match
        numbers[f"held-out control {validation.when}"] = validation.control_exact_match
    return numbers


def _start_up(run: Figures) -> Numbers:
    first = min(run.start_up_seconds, default=None)
    if first is None:
        return {}
    stages = run.start_up_seconds[first]
    return {"until the first step is done": sum(stages.values()), **stages}


def _pace(run: Figures) -> Numbers:
    pace = run.pace
    return {
        "step": pace.step_seconds,
        "seconds per sample": pace.sample_seconds,
        "tokens per second": pace.tokens_per_second,
        **{f"stage {stage}": seconds for stage, seconds in pace.stage_seconds.items()},
        **{f"train: {phase}": seconds for phase, seconds in pace.phase_seconds.items()},
    }


def _shares(run: Figures) -> Numbers:
    names = {phase: f"train: {phase}" for phase in PHASES}
    shares = run.pace.shares
    busy = run.pace.device_utilization
    return {
        **{f"share {names.get(name, name)}": 100 * share for name, share in shares.items()},
        "GPU utilization": None if busy is None else 100 * busy,
    }


def _work(run: Figures) -> Numbers:
    return {"samples per step": run.samples_per_step, "tokens per sample": run.response_tokens}


def _retrieval(run: Figures) -> Numbers:
    numbers: dict[str, float | None] = {}
    for calls in run.retrieval:
        numbers[f"{calls.endpoint} p50"] = calls.p50
        numbers[f"{calls.endpoint} p95"] = calls.p95
        numbers[f"{calls.endpoint} failed calls"] = sum(calls.failures.values())
    return numbers


def _memory(run: Figures) -> Numbers:
    values = {
        "driver's pod": run.memory.driver,
        "rank": run.memory.rank,
        "GPU, tensors": run.memory.device,
        "GPU, reserved": run.memory.device_reserved,
    }
    return {name: None if value is None else value / GIB for name, value in values.items()}


_SECTIONS = {
    "Rewards (means)": _rewards,
    "Start-up of the first attempt (seconds)": _start_up,
    "Pace (medians over steps; step and stages in seconds)": _pace,
    "Shares of a step and GPU utilization (medians, %)": _shares,
    "Work (means)": _work,
    "Retrieval (latency in seconds)": _retrieval,
    "Memory (maximum, GiB)": _memory,
}


def _numbers(a: Numbers, b: Numbers) -> Iterator[str]:
    for name in {**a, **b}:
        value_a, value_b = a.get(name), b.get(name)
        if value_a is not None or value_b is not None:
            yield _line(name, _text(value_a), _text(value_b), _percent(value_a, value_b))


def _percent(a: float | None, b: float | None) -> str:
    """Return the difference of `b` in percent of `a`, or "" if it is not defined."""
    if not a or b is None:
        return ""
    return f"{round(100 * (b - a) / abs(a)):+d} %"


def _differences(a: Resolved, b: Resolved) -> Iterator[str]:
    """Yield the values that differ and that a user has set in at least one of the runs."""
    values_a, values_b = a.values(), b.values()
    paths = [
        path
        for path in {**values_a, **values_b}
        if path not in PER_RUN
        and Origin.USER in (a.origins.get(path), b.origins.get(path))
        and values_a.get(path) != values_b.get(path)
    ]
    for path in paths:
        yield _line(path, _value(values_a.get(path)), _value(values_b.get(path)))
    if not paths:
        yield "none"


def _changes(segment: Segment) -> Iterator[str]:
    if not segment.changes:
        yield "none"
    for change in segment.changes:
        path, _, values = change.partition(": ")
        yield _line(path, *values.split(" → "))


def _value(value: Any) -> str:
    return "-" if value is None else json.dumps(value, ensure_ascii=False)


def _line(*cells: str) -> str:
    """Return a row of at most 100 characters per line; text longer than its cell is wrapped."""
    wrapped = [textwrap.wrap(cell, width) for cell, width in zip(cells, WIDTHS, strict=False)]
    rows = zip_longest(*wrapped, fillvalue="")
    return "\n".join(
        "  ".join(f"{text:<{width}}" for text, width in zip(row, WIDTHS, strict=False)).rstrip()
        for row in rows
    )


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
