"""`raggrpo compare`: show two runs side by side, to see what a changed value did."""

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
"""Of the columns name, A, B and B/A."""
PER_RUN = frozenset({"checkpoint.path", "monitoring.logDir"})
"""Fields that always differ between two runs."""


def compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="Job folder.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Job folder.")],
) -> None:
    """Show two runs side by side: throughput by stage, rewards, and what was set differently."""
    a, b = load_recorded_job(first), load_recorded_job(second)
    show("\n".join(comparison(a, b)))


def comparison(a: RecordedJob, b: RecordedJob) -> Iterator[str]:
    """Yield the lines of the table; the last column is B divided by A."""
    yield _line("", a.folder.name, b.folder.name, "B/A")
    yield _line("job", a.job.metadata.name, b.job.metadata.name)
    yield _line("phase", a.status.phase, b.status.phase)
    yield from _numbers(_outcome(a), _outcome(b))
    of_a, of_b = _figures(a), _figures(b)
    yield from ("", "Results")
    yield from _numbers(_results(of_a), _results(of_b))
    yield from ("", "Throughput (seconds per step by stage)")
    yield from _numbers(_throughput(of_a), _throughput(of_b))
    yield from ("", "Set differently")
    yield from _differences(a, b)


Numbers = dict[str, float | None]


def _outcome(job: RecordedJob) -> Numbers:
    attempts = job.status.attempts
    return {
        "steps": job.status.progress.step,
        "restarts": job.status.restarts.total,
        "lost steps": sum(attempt.lost_steps for attempt in attempts),
        "seconds of all attempts": sum(attempt.seconds for attempt in attempts),
    }


def _figures(job: RecordedJob) -> Figures:
    return figures(read_history(job.log_dir), read_events(job.log_dir))


def _results(found: Figures) -> Numbers:
    numbers: Numbers = {
        "mean reward, first 10 steps": found.reward_first,
        "mean reward, last 10 steps": found.reward_last,
        "exact match, last 10 steps": found.exact_match_last,
    }
    for validation in found.validations:
        numbers[f"held-out exact match {validation.when}"] = validation.exact_match
        numbers[f"held-out control {validation.when}"] = validation.control_exact_match
    return numbers


def _throughput(found: Figures) -> Numbers:
    steps = max(1, found.steps)
    return {
        "samples per second": found.samples_per_second,
        "tokens per second": found.tokens_per_second,
        "step (median)": found.step_seconds,
        **{stage: seconds / steps for stage, seconds in found.stage_seconds.items()},
    }


def _numbers(a: Numbers, b: Numbers) -> Iterator[str]:
    for name in {**a, **b}:
        of_a, of_b = a.get(name), b.get(name)
        if of_a is None and of_b is None:
            continue
        ratio = f"{of_b / of_a:.2f}" if of_a and of_b is not None else ""
        yield _line(name, _shown(of_a), _shown(of_b), ratio)


def _differences(a: RecordedJob, b: RecordedJob) -> Iterator[str]:
    of_a, of_b = a.resolved.values(), b.resolved.values()
    paths = [p for p in {**of_a, **of_b} if p not in PER_RUN and of_a.get(p) != of_b.get(p)]
    for path in paths:
        yield _line(path, json.dumps(of_a.get(path)), json.dumps(of_b.get(path)))
    if not paths:
        yield "nothing"


def _line(*cells: str) -> str:
    """Return one row, at most 100 columns wide; longer cells wrap."""
    wrapped = [textwrap.wrap(cell, width) for cell, width in zip(cells, WIDTHS, strict=False)]
    rows = zip_longest(*wrapped, fillvalue="")
    return "\n".join(
        "  ".join(f"{text:<{width}}" for text, width in zip(row, WIDTHS, strict=False)).rstrip()
        for row in rows
    )


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
