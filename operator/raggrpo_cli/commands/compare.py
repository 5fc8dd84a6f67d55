"""`raggrpo compare A B`: show the results of two runs side by side."""

import json
import textwrap
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Annotated

import typer

from raggrpo_api.trainer.history import read_events, read_history
from raggrpo_cli.recorded_job import RecordedJob, load_recorded_job
from raggrpo_cli.terminal import show
from raggrpo_operator.core.text.figures import Figures, figures

WIDTHS = (34, 27, 27, 6)
"""Widths of the columns name, A, B and B/A in characters."""
PER_RUN = frozenset({"checkpoint.path", "monitoring.logDir"})
"""Fields that always differ between two runs."""


def compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="Job folder.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Job folder.")],
) -> None:
    """Compare two runs: rewards, throughput by stage and differing fields."""
    a, b = load_recorded_job(first), load_recorded_job(second)
    show("\n".join(comparison(a, b)))


def comparison(a: RecordedJob, b: RecordedJob) -> Iterator[str]:
    """Yield the lines of a table that compares two runs; the last column is the ratio B/A."""
    yield _line("", a.folder.name, b.folder.name, "B/A")
    yield _line("job", a.job.metadata.name, b.job.metadata.name)
    yield _line("phase", a.status.phase, b.status.phase)
    yield from _numbers(_outcome(a), _outcome(b))
    figures_a, figures_b = _figures(a), _figures(b)
    yield from ("", "Results")
    yield from _numbers(_results(figures_a), _results(figures_b))
    yield from ("", "Throughput (seconds per step by stage)")
    yield from _numbers(_throughput(figures_a), _throughput(figures_b))
    yield from ("", "Different fields")
    yield from _differences(a, b)


Numbers = dict[str, float | None]


def _outcome(job: RecordedJob) -> Numbers:
    attempts = job.status.attempts
    return {
        "steps": job.status.progress.step,
        "restarts": job.status.restarts.total,
        "lost steps": sum(attempt.lost_steps for attempt in attempts),
        "total seconds of attempts": sum(attempt.seconds for attempt in attempts),
    }


def _figures(job: RecordedJob) -> Figures:
    return figures(read_history(job.log_dir), read_events(job.log_dir))


def _results(run: Figures) -> Numbers:
    numbers: Numbers = {
        "mean reward, first 10 steps": run.reward_first,
        "mean reward, last 10 steps": run.reward_last,
        "exact match, last 10 steps": run.exact_match_last,
    }
    for validation in run.validations:
        numbers[f"held-out exact match {validation.when}"] = validation.exact_match
        numbers[f"held-out control {validation.when}"] = validation.control_exact_match
    return numbers


def _throughput(run: Figures) -> Numbers:
    steps = max(1, run.steps)
    return {
        "samples per second": run.samples_per_second,
        "tokens per second": run.tokens_per_second,
        "step (median)": run.step_seconds,
        **{stage: seconds / steps for stage, seconds in run.stage_seconds.items()},
    }


def _numbers(a: Numbers, b: Numbers) -> Iterator[str]:
    for name in {**a, **b}:
        value_a, value_b = a.get(name), b.get(name)
        if value_a is None and value_b is None:
            continue
        ratio = f"{value_b / value_a:.2f}" if value_a and value_b is not None else ""
        yield _line(name, _text(value_a), _text(value_b), ratio)


def _differences(a: RecordedJob, b: RecordedJob) -> Iterator[str]:
    values_a, values_b = a.resolved.values(), b.resolved.values()
    fields = [path for path in {**values_a, **values_b} if path not in PER_RUN]
    paths = [path for path in fields if values_a.get(path) != values_b.get(path)]
    for path in paths:
        yield _line(path, json.dumps(values_a.get(path)), json.dumps(values_b.get(path)))
    if not paths:
        yield "none"


def _line(*cells: str) -> str:
    """Return a table row with lines of at most 100 characters; longer cells are wrapped."""
    wrapped = [textwrap.wrap(cell, width) for cell, width in zip(cells, WIDTHS, strict=False)]
    rows = zip_longest(*wrapped, fillvalue="")
    return "\n".join(
        "  ".join(f"{text:<{width}}" for text, width in zip(row, WIDTHS, strict=False)).rstrip()
        for row in rows
    )


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
