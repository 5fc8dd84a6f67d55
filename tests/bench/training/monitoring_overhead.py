r"""Overhead of the monitoring modes Full, Light and Off, alternating within one real run.

    PYTHONPATH=tests .venv/bin/python tests/bench/training/monitoring_overhead.py \
        [--steps 150] [--json] [--quick]

Two results per mode. Paired: step time compared with the neighboring step in mode Off. Direct: time
of the loop in the reporter plus CPU time of the reporting thread per step, relative to Off; it
shows costs below the noise of step times.
"""

import argparse
import asyncio
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.training.alternating_reporter import ENV_RESULT, MODES
from bench.training.workload import TINY, Workload, write_model, write_prompts
from bench.training.workload_job import THREADS, job_of
from raggrpo_api.job import RagGrpoJob
from raggrpo_api.spec.monitoring import MonitoringMode
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.sealed_config import seal
from raggrpo_operator.core.lifecycle.observed import SubmissionStatus
from raggrpo_operator.core.sizing.shared_memory import object_store_bytes
from raggrpo_operator.core.spec.parse import parse_job
from raggrpo_operator.core.spec.resolve import resolve, trainer_config
from raggrpo_operator.local_runtime.driver import Driver, driver_log
from raggrpo_operator.local_runtime.processes import Processes, tail
from raggrpo_operator.local_runtime.ray_head import RayHead, make_temp_dir, start_ray_head

SMALL: dict[str, Any] = {
    "layers": 4,
    "hidden": 128,
    "intermediate": 256,
    "heads": 4,
    "vocabulary": 1024,
    "prompt_tokens": 128,
    "response_tokens": 32,
}
"""Similar to the quickstart model; for larger models, reporting takes a smaller share."""
POLL_SECONDS = 0.5
TIMEOUT_SECONDS = 3600.0
REPORTING = Path(__file__).with_name("alternating_reporter.py")


def main() -> None:
    parser = argparse.ArgumentParser(description="overhead of monitoring")
    parser.add_argument("--steps", type=int, default=150, help="counted steps of each mode")
    parser.add_argument("--quick", action="store_true", help="tiny model, four steps of each mode")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    each = 4 if options.quick else options.steps
    size = TINY if options.quick else SMALL
    # One warm-up round, and one step after the last round, which ends it.
    work = Workload(warmup=len(MODES), steps=each * len(MODES) + 1, learning_rate=1e-6, **size)
    with tempfile.TemporaryDirectory(prefix="raggrpo-bench-") as temporary:
        folder = Path(temporary)
        parameters = write_model(work, folder / "model")
        write_prompts(work, folder / "train.jsonl")
        measured = asyncio.run(run_job(job_in(work, folder), folder))
    result = summary(work, parameters, measured)
    print("\n".join(table(result)))
    if options.json:
        print(json.dumps(result))


def job_in(work: Workload, folder: Path) -> RagGrpoJob:
    """Return the job with an instant reward."""
    raw = job_of(work, folder, folder, {"name": "Contains"})
    raw["metadata"]["uid"] = "monitoring-overhead"
    job = parse_job(raw)
    if not isinstance(job, RagGrpoJob):
        raise RuntimeError("\n".join(map(str, job)))
    return job


async def run_job(job: RagGrpoJob, folder: Path) -> dict[str, Any]:
    """Run the job on its own Ray head; return the measurements of its reporters."""
    resolved = resolve(job)
    config = trainer_config(job, resolved, number=1)
    processes = Processes()
    try:
        head = start_ray_head(
            1,
            processes,
            world=config.world,
            object_store_bytes=object_store_bytes(resolved.spec),
            env=os.environ | {"TORCHDYNAMO_DISABLE": "1", "HF_HUB_OFFLINE": "1"},
            log_file=folder / "ray.log",
            temp_dir=make_temp_dir(),
        )
        try:
            await _attempt(head, processes, config, folder / "measured.json")
        finally:
            await head.close(processes)
    finally:
        processes.terminate_all()
    measured: dict[str, Any] = json.loads((folder / "measured.json").read_text())
    return measured


async def _attempt(head: RayHead, processes: Processes, config: TrainerConfig, to: Path) -> None:
    """Run the driver until it exits. Raises RuntimeError if it fails."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    driver: Driver | None = None
    while driver is None or not driver.observe().status.is_terminal:
        if head.exit_message() or time.monotonic() > deadline:
            raise RuntimeError(head.exit_message() or f"no end after {TIMEOUT_SECONDS:.0f} s")
        if driver is None and head.address():
            env = seal(config.to_json()) | {ENV_RESULT: str(to)}
            driver = Driver(processes, head, 1, env, (sys.executable, str(REPORTING)))
        await asyncio.sleep(POLL_SECONDS)
    if driver.observe().status is not SubmissionStatus.SUCCEEDED:
        log = tail(driver_log(head.temp_dir, 1), lines=40)
        raise RuntimeError(f"the driver ended with {driver.observe()}: {log}")


def summary(work: Workload, parameters: int, measured: Mapping[str, Any]) -> dict[str, Any]:
    """Return the costs of each mode as a JSON value. Pure.

    The time between two reports counts for the mode of the first: its thread may still write during
    the following step.
    """
    steps = measured["steps"]
    durations = [b["started"] - a["started"] for a, b in pairwise(steps)]
    by_mode: dict[str, dict[str, list[float]]] = {m: {"step": [], "call": []} for m in MODES}
    for step, seconds in list(zip(steps, durations, strict=False))[work.warmup - 1 :]:
        by_mode[step["mode"]]["step"].append(seconds)
        by_mode[step["mode"]]["call"].append(step["in_call"])
    handled = Counter(step["mode"] for step in steps[work.warmup - 1 :])
    thread = {mode: measured["thread_seconds"][mode] / handled[mode] for mode in MODES}
    rounds = min(len(values["step"]) for values in by_mode.values())
    base = by_mode[MonitoringMode.OFF]["step"][:rounds]
    median = statistics.median(base)
    reporting = {mode: statistics.fmean(by_mode[mode]["call"]) + thread[mode] for mode in MODES}
    return {
        "bench": "monitoring_overhead",
        "workload": asdict(work) | {"parameters": parameters, "threads": THREADS},
        "steps_per_mode": rounds,
        "modes": {
            mode: {
                "step_seconds": statistics.median(by_mode[mode]["step"]),
                "loop_seconds": statistics.fmean(by_mode[mode]["call"]),
                "thread_seconds": thread[mode],
                "direct_percent": 100 * (reporting[mode] - reporting[MonitoringMode.OFF]) / median,
                "paired_percent": interval(
                    [
                        100 * (with_it - without) / median
                        for with_it, without in zip(by_mode[mode]["step"], base, strict=False)
                    ]
                ),
            }
            for mode in MODES
        },
    }


def interval(values: Sequence[float]) -> list[float]:
    """Return lower bound, median and upper bound of its 95 % interval (order statistics)."""
    ordered, n = sorted(values), len(values)
    reach = 0.98 * math.sqrt(n)
    low, high = max(0, math.floor(n / 2 - reach)), min(n - 1, math.ceil(n / 2 + reach) - 1)
    return [ordered[low], statistics.median(ordered), ordered[high]]


def table(result: Mapping[str, Any]) -> Iterator[str]:
    work = result["workload"]
    yield (
        f"{work['parameters'] / 1e6:.2f}M parameters, {work['prompts']} prompts × n {work['n']}, "
        f"{result['steps_per_mode']} steps in each mode, {work['threads']} threads"
    )
    yield f"{'':<7}{'s/step':>8}{'loop µs':>9}{'thread ms':>11}{'direct %':>10}{'paired %':>24}"
    for mode, costs in result["modes"].items():
        low, middle, high = costs["paired_percent"]
        paired = "" if mode == MonitoringMode.OFF else f"{middle:+.2f} [{low:+.2f}, {high:+.2f}]"
        yield (
            f"{mode:<7}{costs['step_seconds']:>8.3f}{1e6 * costs['loop_seconds']:>9.0f}"
            f"{1e3 * costs['thread_seconds']:>11.2f}{costs['direct_percent']:>+10.2f}{paired:>24}"
        )


if __name__ == "__main__":
    main()
