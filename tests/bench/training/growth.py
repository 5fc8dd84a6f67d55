r"""Step time by workload size, and drift over 500 steps. Writes docs/internals/growth.md.

    PYTHONPATH=tests .venv/bin/python tests/bench/training/growth.py \
        [--page docs/internals/growth.md] [--drift-steps 500] [--quick]

Each point is the median of the counted steps of one `raggrpo run`; one value is changed at a time.
Drift is the slope of a straight line through all steps of one run, with a 95 % interval from a
moving-block bootstrap (Künsch 1989, "The jackknife and the bootstrap for general stationary
observations"), since neighboring steps correlate.
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bench.training.train_throughput import environment, judge, run_job, seconds_between
from bench.training.workload import TINY, Workload, write_model, write_prompts
from bench.training.workload_job import job_of
from raggrpo_api.trainer.history import Record

BASE = Workload(
    layers=4, hidden=256, intermediate=512, heads=4, vocabulary=4096, prompt_tokens=128,
    response_tokens=32, prompts=4, n=4, warmup=2, steps=4,
)  # fmt: skip
BLOCK = 25
"""Block length of the bootstrap in steps."""
RESAMPLES = 2000
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Curve:
    """Step time by one value of the workload."""

    title: str
    axis: str
    points: Sequence[tuple[int, Workload, int]]
    """(displayed value, workload, ranks)."""


@dataclass(frozen=True, slots=True)
class Slope:
    """Change per 100 steps in percent of the median, with 95 % interval."""

    median: float
    low: float
    value: float
    high: float


def curves(base: Workload) -> Iterator[Curve]:
    """Yield every curve around one workload."""

    def by(field: str, *values: int) -> list[tuple[int, Workload, int]]:
        return [(value, replace(base, **{field: value}), 1) for value in values]

    prompt, response = base.prompt_tokens, base.response_tokens
    yield Curve("Prompt length", "tokens", by("prompt_tokens", *(prompt * k for k in (1, 2, 4, 8))))
    lengths = [response * k for k in (1, 2, 4, 8)]
    yield Curve("Response length", "tokens", by("response_tokens", *lengths))
    yield Curve("Completions per prompt", "n", by("n", *(base.n * k for k in (1, 2, 4))))
    yield Curve(
        "Prompts per step", "prompts", by("prompts", *(base.prompts * k for k in (1, 2, 4)))
    )
    yield Curve("Ranks, on the same processors", "ranks", [(1, base, 1), (2, base, 2)])
    sizes = [replace(base, layers=base.layers * k, hidden=base.hidden * k,
                     intermediate=base.intermediate * k, heads=base.heads * k)
             for k in (1, 2, 3)]  # fmt: skip
    yield Curve("Model size", "1,000 parameters", [(parameters(s) // 1000, s, 1) for s in sizes])


def parameters(work: Workload) -> int:
    """Return the approximate number of parameters."""
    layer = 4 * work.hidden**2 + 3 * work.hidden * work.intermediate
    return work.layers * layer + 2 * work.vocabulary * work.hidden


def run(work: Workload, url: str, folder: Path, ranks: int = 1) -> Sequence[Record]:
    """Train in a separate process and return its step records with memory."""
    folder.mkdir()
    write_model(work, folder / "model")
    write_prompts(work, folder / "train.jsonl")
    job = job_of(work, folder, folder, {"name": "Http", "url": url})
    job["spec"]["resources"]["ranks"] = ranks
    job["spec"]["monitoring"]["mode"] = "Full"
    return run_job(job, folder, environment())[1]


def slope(values: Sequence[float]) -> Slope:
    """Return the drift of a series, in percent of its median per 100 steps."""
    series = np.asarray(values)
    steps = np.arange(len(series))
    scale = 100 * 100 / float(np.median(series))
    fitted = np.polyfit(steps, series, 1)
    residuals = series - np.polyval(fitted, steps)
    draw = np.random.default_rng(0)
    slopes = []
    for _ in range(RESAMPLES):
        starts = draw.integers(0, len(series) - BLOCK + 1, -(-len(series) // BLOCK))
        noise = np.concatenate([residuals[first : first + BLOCK] for first in starts])
        drawn = np.polyval(fitted, steps) + noise[: len(series)]
        slopes.append(np.polyfit(steps, drawn, 1)[0])
    low, high = np.percentile(slopes, [2.5, 97.5])
    return Slope(float(np.median(series)), *(float(x * scale) for x in (low, fitted[0], high)))


def chart(curve: Curve, seconds: Sequence[float]) -> str:
    """Return the curve as a Mermaid chart."""
    values = ", ".join(str(value) for value, _, _ in curve.points)
    line = ", ".join(f"{each:.3f}" for each in seconds)
    return "\n".join(
        [
            "```mermaid", "xychart-beta", f'  title "{curve.title}"',
            f'  x-axis "{curve.axis}" [{values}]', '  y-axis "seconds per step"',
            f"  line [{line}]", "```", "",
        ]
    )  # fmt: skip


def drift(steps: int, url: str, folder: Path, base: Workload) -> str:
    """Return the drift of a run as a table."""
    work = replace(base, warmup=20, steps=steps)
    counted = run(work, url, folder)[work.warmup :]
    series: dict[str, Callable[[Record], float]] = {
        "s/step": lambda each: each["step_seconds"],
        "memory of the driver, MiB": lambda each: each["host_memory_bytes"] / MIB,
        "memory of the rank, MiB": lambda each: each["rank_memory_bytes"] / MIB,
    }
    rows = ["| | median | change per 100 steps: 95 % interval |", "|---|---|---|"]
    for name, read in series.items():
        drifted = slope([read(each) for each in counted])
        interval = f"[{drifted.low:+.2f} %, {drifted.high:+.2f} %]"
        rows.append(f"| {name} | {drifted.median:.3f} | {drifted.value:+.2f} % {interval} |")
    return "\n".join(rows)


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description="growth curves and drift of a step")
    parser.add_argument("--page", type=Path, help="file that receives the page")
    parser.add_argument("--drift-steps", type=int, default=500)
    parser.add_argument("--quick", action="store_true", help="a tiny model, which shows nothing")
    options = parser.parse_args()
    if options.drift_steps < 2 * BLOCK:
        parser.error(f"--drift-steps: at least {2 * BLOCK}, which are two blocks of the bootstrap")
    base = replace(BASE, **TINY, warmup=1, steps=2) if options.quick else BASE
    charts = []
    with tempfile.TemporaryDirectory(prefix="raggrpo-bench-") as temporary, judge() as url:
        for number, curve in enumerate(curves(base)):
            seconds = []
            for value, work, ranks in curve.points:
                folder = Path(temporary) / f"{number}-{value}"
                history = run(work, url, folder, ranks)
                seconds.append(statistics.median(seconds_between(history)[-work.steps :]))
                print(f"{curve.title} {value}: {seconds[-1]:.3f} s/step", flush=True)
            charts.append(chart(curve, seconds))
        table = drift(options.drift_steps, url, Path(temporary) / "drift", replace(BASE, **TINY))
    page = PAGE.format(
        cpus=len(os.sched_getaffinity(0)), table=table, steps=options.drift_steps,
        charts="\n".join(charts), parameters=parameters(base) / 1e6, base=base,
    )  # fmt: skip
    print(page)
    if options.page:
        options.page.write_text(page, encoding="utf-8")


PAGE = """# Step time by workload size, and drift

`PYTHONPATH=tests .venv/bin/python tests/bench/training/growth.py --page
docs/internals/growth.md` writes this page.
Machine: {cpus} CPUs, no GPU. Each point is a separate run. Unless stated otherwise:
{parameters:.1f}M parameters, {base.prompts} prompts × n {base.n}, prompts of {base.prompt_tokens}
tokens, responses of {base.response_tokens}, one rank, one engine, FP32, and a judge with a median
latency of 0.15 s.

## Drift

{steps} steps of a tiny model after 20 warm-up steps:

{table}

## Growth

{charts}"""

if __name__ == "__main__":
    main()
