r"""Training throughput of `raggrpo run` against TRL's GRPOTrainer on the same RAG workload.

    PYTHONPATH=tests .venv/bin/python tests/bench/training/train_throughput.py \
        [--prompt 384] [--precision BF16] [--repeats 3] [--quick] [--device GPU --size 0.5B]

Every measurement is a separate process. Systems alternate within a repeat, so that changes of the
machine's speed affect all of them. docs/internals/benchmarks.md describes the method.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from bench.training.throughput_bounds import step_flops
from bench.training.watched_process import end, run_watched
from bench.training.workload import SIZES, TINY, Workload, write_model, write_prompts
from bench.training.workload_job import CLAIM, THREADS, job_of
from raggrpo_api.trainer.history import Record, read_history

FEATURE_ROWS = ("G1",)
"""Rows of docs/features.md that this benchmark measures."""
OURS = "ours"
SYSTEMS = {
    OURS: "raggrpo run",
    "trl": "TRL, transformers, gathered rewards",
    "trl-serial": "TRL, transformers, serial rewards",
    "trl-vllm": "TRL, vLLM patched, gathered rewards",
}
ENGINES: Mapping[str, Mapping[str, Any]] = {
    "blocks of 32": {"block_size": 32, "enforce_eager": True},
    "blocks of 64": {"block_size": 64, "enforce_eager": True},
    "blocks of 128": {"block_size": 128, "enforce_eager": True},
    "compiled, blocks of 32": {"block_size": 32},
}
"""vLLM settings whose offline throughput is the bound of generation."""
JUDGE_MEDIAN_SECONDS = 0.150
TIMEOUT_SECONDS = 3600.0
HERE = Path(__file__).parent
TESTS = HERE.parents[1]


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of one system."""

    step_seconds: list[float]
    """Wall-clock time between the ends of counted steps."""
    response_tokens: float
    """Mean length of the completions in tokens."""
    reward_std: float
    peak_rss: int
    """Peak resident memory in bytes, summed over the process tree."""
    stages: dict[str, float]
    """Median seconds by stage; only for `raggrpo run`."""

    @property
    def seconds(self) -> float:
        return statistics.median(self.step_seconds)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Upper bounds measured in one repeat without this project's code."""

    engines: dict[str, float]
    """Offline throughput of vLLM in tokens/s, by settings."""
    products: dict[str, float]
    """FLOP/s of matrix products by shape."""


def main() -> None:
    options = arguments()
    work = workload(options)
    runs: dict[str, list[Measured]] = {name: [] for name in options.systems}
    bounds: list[Bounds] = []
    with folder_of_runs(options.keep) as folder, judge(options.judge_seconds) as url:
        parameters = write_model(work, folder / "model")
        write_prompts(work, folder / "train.jsonl")
        (folder / "workload.json").write_text(json.dumps(asdict(work)))
        for repeat in range(options.repeats):
            for name in options.systems:
                run = measure(name, work, folder, url, folder / f"{name}-{repeat}", options.set)
                runs[name].append(run)
                result = summary(work, parameters, runs, bounds)
                (folder / "result.json").write_text(json.dumps(result))
                print(f"repeat {repeat + 1}: {SYSTEMS[name]}: {run.seconds:.2f} s/step", flush=True)
            if options.bounds:
                bounds.append(measure_bounds(folder, folder / f"bounds-{repeat}"))
                print(f"repeat {repeat + 1}: {bounds[-1]}", flush=True)
        result = summary(work, parameters, runs, bounds)
    print("\n".join(table(result)))
    if options.json:
        print(json.dumps(result))


@contextmanager
def folder_of_runs(keep: Path | None) -> Iterator[Path]:
    """Yield the folder for the inputs, logs and results of all runs; temporary if `keep` is None.

    The runs write to `keep` themselves, so that a failed run leaves its logs there.
    """
    if keep is not None:
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="raggrpo-bench-") as temporary:
        yield Path(temporary)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="training throughput against TRL")
    parser.add_argument("--device", choices=("CPU", "GPU"), default="CPU")
    parser.add_argument("--size", choices=list(SIZES), help="shape of the model")
    parser.add_argument("--prompt", type=int, default=384, help="tokens of a prompt")
    parser.add_argument("--response", type=int, default=64, help="tokens of a completion")
    parser.add_argument("--prompts", type=int, default=4, help="prompts of a step")
    parser.add_argument(
        "--judge-seconds", type=float, default=JUDGE_MEDIAN_SECONDS, help="median of a score"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="PATH=VALUE", help="a field of our job"
    )
    parser.add_argument("--precision", choices=("FP32", "BF16", "FP16"), default="FP32")
    parser.add_argument("--warmup", type=int, default=2, help="steps that are not counted, ≥ 1")
    parser.add_argument("--steps", type=int, default=5, help="counted steps")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--systems", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS))
    parser.add_argument("--bounds", action="store_true", help="vLLM alone and matrix products, too")
    parser.add_argument("--keep", type=Path, help="folder for result.json and all runs")
    parser.add_argument("--quick", action="store_true", help="tiny model, one short repeat")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    if options.warmup < 1:
        parser.error("--warmup: our first step has no step before it to be timed from")
    if options.quick:
        options.warmup, options.steps, options.repeats = 1, 2, 1
        options.systems = [name for name in options.systems if name in (OURS, "trl")]
    return options


def workload(options: argparse.Namespace) -> Workload:
    lengths = {"prompt_tokens": options.prompt, "response_tokens": options.response}
    size: dict[str, Any] = SIZES.get(options.size, {}) | lengths | {"prompts": options.prompts}
    return Workload(
        warmup=options.warmup,
        steps=options.steps,
        precision=options.precision,
        device=options.device,
        **(TINY if options.quick else size),
    )


def judge(median_seconds: float = JUDGE_MEDIAN_SECONDS) -> AbstractContextManager[str]:
    """Serve the judge until the block ends; yield its URL."""
    return served("slow_judge.py", str(median_seconds))


@contextmanager
def served(script: str, *arguments: str) -> Iterator[str]:
    """Run a server script of this folder until the block ends; yield the URL that it prints."""
    command = [sys.executable, str(HERE / script), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment())
    try:
        assert process.stdout is not None
        yield process.stdout.readline().decode().strip()
    finally:
        end(process)


def measure(
    name: str, work: Workload, inputs: Path, url: str, folder: Path, changes: Sequence[str] = ()
) -> Measured:
    env = environment(work.device)
    if name == OURS:
        return measure_ours(work, inputs, url, folder, changes)
    peak, result = run_script("trl_peer.py", [url, name], inputs, folder, env)
    result["step_seconds"] = result["step_seconds"][-work.steps :]
    return Measured(**result, peak_rss=peak, stages={})


def measure_bounds(inputs: Path, folder: Path) -> Bounds:
    """Measure offline vLLM with all settings, and matrix products."""
    folder.mkdir()
    plain = environment()
    compiling = {k: v for k, v in plain.items() if k != "TORCHDYNAMO_DISABLE"}

    def run(what: str, into: str, env: Mapping[str, str]) -> dict[str, Any]:
        return run_script("throughput_bounds.py", [what], inputs, folder / into, env)[1]

    engines = {}
    for number, (name, settings) in enumerate(ENGINES.items()):
        env = plain if settings.get("enforce_eager") else compiling
        engines[name] = run(json.dumps(settings), str(number), env)["tokens_per_second"]
    return Bounds(engines, run("products", "products", plain))


def run_script(
    script: str, what: Sequence[str], inputs: Path, folder: Path, env: Mapping[str, str]
) -> tuple[int, dict[str, Any]]:
    """Run a script of this folder on the workload; return peak memory in bytes and result."""
    folder.mkdir()
    result = folder / "result.json"
    command = [sys.executable, str(HERE / script), str(inputs / "workload.json"), str(inputs)]
    peak = run_watched([*command, *what, str(result)], env, folder / "run.log", TIMEOUT_SECONDS)
    return peak, json.loads(result.read_text())


def measure_ours(
    work: Workload, inputs: Path, url: str, folder: Path, changes: Sequence[str] = ()
) -> Measured:
    """Run the job file with `raggrpo run` and read its history."""
    folder.mkdir()
    job = job_of(work, inputs, folder, {"name": "Http", "url": url})
    peak, steps = run_job(job, folder, environment(work.device), changes)
    counted = steps[-work.steps :]
    return Measured(
        step_seconds=seconds_between(steps)[-work.steps :],
        response_tokens=statistics.fmean(step["response_tokens"] for step in counted),
        reward_std=statistics.fmean(step["reward_std"] for step in counted),
        peak_rss=peak,
        stages={
            stage: statistics.median(step["seconds"][stage] for step in counted)
            for stage in counted[0]["seconds"]
        },
    )


def run_job(
    job: Mapping[str, Any], folder: Path, env: Mapping[str, str], changes: Sequence[str] = ()
) -> tuple[int, Sequence[Record]]:
    """Run a job with `--set` changes; return its peak memory in bytes and its step records."""
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    command = [sys.executable, "-m", "raggrpo_cli.main", "run", str(folder / "job.yaml")]
    command += ["--dir", str(folder / "job")]
    command += ["--mount", f"{CLAIM}={folder}"] if job["spec"]["volumes"] else []
    command += [part for change in changes for part in ("--set", change)]
    peak = run_watched(command, env, folder / "run.log", TIMEOUT_SECONDS)
    return peak, read_history(folder / "checkpoints" / "logs")


def seconds_between(steps: Sequence[Record]) -> list[float]:
    """Return the seconds from each step's end to the next one's."""
    ends = [datetime.fromisoformat(step["time"]) for step in steps]
    return [(b - a).total_seconds() for a, b in pairwise(ends)]


def environment(device: str = "CPU") -> dict[str, str]:
    """Return the environment of all systems: all CPUs, no network, and no compiler on CPU."""
    common = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "OMP_NUM_THREADS": str(THREADS),
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "PYTHONWARNINGS": "ignore",
    }
    if device == "GPU":
        # TRL's vLLM would import FlashInfer, which is not required for its sampling parameters.
        return common | {"VLLM_USE_FLASHINFER_SAMPLER": "0"}
    return common | {
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }


def summary(
    work: Workload,
    parameters: int,
    runs: Mapping[str, Sequence[Measured]],
    bounds: Sequence[Bounds],
) -> dict[str, Any]:
    ours = [run.seconds for run in runs.get(OURS, ())]
    return {
        "bench": "train_throughput",
        "workload": asdict(work) | {"parameters": parameters, "threads": THREADS},
        "systems": {
            name: {
                "seconds_per_step": statistics.median(run.seconds for run in group),
                "samples_per_second": work.samples / statistics.median(r.seconds for r in group),
                "runs": [asdict(run) for run in group],
            }
            for name, group in runs.items()
            if group
        },
        "ratios": {
            name: [run.seconds / own for run, own in zip(group, ours, strict=False)]
            for name, group in runs.items()
            if ours and group and name != OURS
        },
        "bounds": [asdict(each) for each in bounds],
        "reached": [reached(work, *pair) for pair in zip(runs.get(OURS, ()), bounds, strict=False)],
    }


def reached(work: Workload, ours: Measured, bounds: Bounds) -> dict[str, float]:
    """Return the rates of a step and their shares of the bounds."""
    tokens = work.samples * ours.response_tokens / ours.stages["generate"]
    flops = step_flops(work) / ours.stages["train"]
    return {
        "tokens_per_second": tokens,
        "of_engine": tokens / max(bounds.engines.values()),
        "flops": flops,
        **{f"of_{shape}_products": flops / rate for shape, rate in bounds.products.items()},
    }


def table(result: Mapping[str, Any]) -> Iterator[str]:
    work = result["workload"]
    yield (
        f"{work['parameters'] / 1e6:.1f}M parameters, {work['prompts']} prompts × n {work['n']}, "
        f"prompt {work['prompt_tokens']}, response {work['response_tokens']} tokens, "
        f"{work['precision']}, {work['threads']} threads"
    )
    titles = f"{'s/step':>8}{'samples/s':>11}{'tokens':>8}{'GiB':>6}{'ours is × faster':>23}"
    yield f"{'':<37}{titles}"
    for name, system in result["systems"].items():
        runs = system["runs"]
        tokens = statistics.fmean(run["response_tokens"] for run in runs)
        gib = max(run["peak_rss"] for run in runs) / 2**30
        ratios = sorted(result["ratios"].get(name, ()))
        spread = (
            f"{ratios[0]:.2f} – {statistics.median(ratios):.2f} – {ratios[-1]:.2f}"
            if ratios
            else ""
        )
        yield (
            f"{SYSTEMS[name]:<37}{system['seconds_per_step']:>8.2f}"
            f"{system['samples_per_second']:>11.2f}{tokens:>8.1f}{gib:>6.1f}{spread:>23}"
        )
    ours = result["systems"].get(OURS)
    if ours:
        stages = [run["stages"] for run in ours["runs"]]
        medians = {name: statistics.median(s[name] for s in stages) for name in stages[0]}
        yield "ours by stage: " + ", ".join(f"{name} {s:.2f} s" for name, s in medians.items())
    for shares in result["reached"]:
        yield "ours and its bounds: " + ", ".join(f"{name} {n:.3g}" for name, n in shares.items())


if __name__ == "__main__":
    main()
