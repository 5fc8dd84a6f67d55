"""The runs of `gpu.job`, by step: commands, time limits, and how their results are read."""

import hashlib
import json
import os
import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raggrpo_api.names import ENV_FAULT
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import Phase
from raggrpo_api.trainer.history import read_history

FEATURE_ROWS = ("K1", "K2", "K3", "K4", "K5", "K6", "K7")
"""Rows of docs/features.md that these runs measure."""
ROOT = Path(__file__).parents[3]
INPUT = Path(os.environ.get("QUICKSTART_INPUT", ROOT / ".cache" / "gpu-quickstart"))
"""Folder made by `python -m raggrpo_quickstart --dir`."""
QUICKSTART = ROOT / "crds" / "samples" / "quickstart.yaml"
EXPORT = Path("checkpoints") / "export" / "model.safetensors"
UNDISTURBED = "quickstart"
STEPS = 40
CPU_STEPS = 12
LEARNING_RATE = 1e-3
"""`training.learningRate` of the quickstart."""
GPU_DIFFERENCE = 2 * STEPS * LEARNING_RATE
"""Maximum difference of a parameter between the killed and the undisturbed run on a GPU.

AdamW changes a parameter by about the learning rate per step, so runs from equal weights stay
within this distance even if every step has other samples.
"""
KILLS = (("engine", 1), ("rank", 1), ("driver", 1), ("driver", 2))
"""Process to kill and attempt, at equal distances in steps; a second kill of the driver occurs only
if the rank's loss did not end the first attempt."""
RECORD_OF_KILL = {
    "engine": re.compile(rf"{Cause.ROLLOUT_ENGINE_LOST}:"),
    "rank": re.compile(rf"{Cause.TRAINER_RANK_LOST}:"),
    "driver": re.compile(rf"(?s){Cause.PROGRAM_ERROR}:.*\bthe driver was killed"),
}
"""Pattern of `Cause: message` in the status of a job whose process was killed."""
Command = tuple[list[str], dict[str, str]]


def no_error(values: Mapping[str, Any], *, cpu: bool) -> str:
    """Return an empty text, for runs that fail only by their exit code."""
    return ""


def shortage_error(values: Mapping[str, Any], *, cpu: bool) -> str:
    """Return why a run with too large a step did not recover, or an empty text."""
    causes = ", ".join(values["causes"])
    if Cause.CUDA_OUT_OF_MEMORY not in values["causes"]:
        return f"no attempt ended with {Cause.CUDA_OUT_OF_MEMORY}: {causes}"
    if not values["mitigations"]:
        return f"the last attempt had no mitigation: {causes}"
    if values["phase"] != Phase.SUCCEEDED:
        return f"the job ended {values['phase']}: {causes}"
    return ""


def kills_error(values: Mapping[str, Any], *, cpu: bool) -> str:
    """Return why a run did not survive all kills with the same parameters, or an empty text."""
    missing = [name for name in RECORD_OF_KILL if name not in values["kills"]]
    if missing:
        return f"no kill of {' and '.join(missing)} is recorded: {', '.join(values['causes'])}"
    difference, limit = values["largest difference"], 0.0 if cpu else GPU_DIFFERENCE
    if difference is None:
        return f"run {UNDISTURBED} left no parameters to compare with"
    if not difference <= limit:  # also if it is NaN
        return f"parameters differ by {difference:.3g} from run {UNDISTURBED} (limit {limit:g})"
    return ""


@dataclass(frozen=True, slots=True)
class Run:
    """One command of a step."""

    step: str
    name: str
    limit: int
    """Time limit in seconds."""
    command: Callable[..., Command]
    """Function of (folder, cpu) that returns command and additional environment."""
    values: Callable[[Path], dict[str, Any]]
    """Function of the folder that returns the measured values."""
    error_in: Callable[..., str] = no_error
    """Function of (values, cpu) that returns what is wrong with the values of a completed run."""


def smoke(size: str, *options: str) -> Callable[..., Command]:
    """Return the command of an engine smoke test."""

    def command(folder: Path, *, cpu: bool) -> Command:
        script = str(ROOT / "tests" / "gpu" / "job" / "engine_smoke.py")
        words = [sys.executable, script, "tiny" if cpu else size, str(folder / "result.json")]
        return [*words, *options, *(["--cpu"] if cpu else [])], {}

    return command


def smoke_values(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return values


def kills(steps: int) -> str:
    """Return the faults that kill engine, rank and driver once each, at a quarter of the steps."""
    moments = {"engine": steps // 4, "rank": steps // 2, "driver": steps * 3 // 4}
    return ",".join(f"kill-{name}@step={moments[name]}@attempt={n}" for name, n in KILLS)


def quickstart(*changes: str, killed: bool = False) -> Callable[..., Command]:
    """Return the command of README's quickstart on a GPU."""

    def command(folder: Path, *, cpu: bool) -> Command:
        (folder / "input").symlink_to(INPUT)
        device = ["resources.device=CPU"] if cpu else ["resources.device=GPU"]
        words = [sys.executable, "-m", "raggrpo_cli.main", "run", str(QUICKSTART)]
        words += ["--dir", str(folder), "--mount", f"quickstart={folder}"]
        steps = CPU_STEPS if cpu else STEPS
        for change in (*device, f"training.totalSteps={steps}", *changes):
            words += ["--set", change]
        return words, {ENV_FAULT: kills(steps)} if killed else {}

    return command


def quickstart_values(folder: Path) -> dict[str, Any]:
    summary = json.loads((folder / "summary.json").read_text())
    steps = read_history(folder / "checkpoints" / "logs")
    weights = folder / EXPORT
    return {
        "phase": summary["phase"],
        "step": summary["step"],
        "causes": causes(summary),
        "mitigations": mitigations(summary),
        "lost steps": sum(each["lostSteps"] for each in summary["attempts"]),
        "seconds a step": median_of_step(steps),
        "stages": stages(steps),
        "parameters": hashlib.sha256(weights.read_bytes()).hexdigest()[:12],
        **numbers(steps),
    }


def killed_values(folder: Path) -> dict[str, Any]:
    """Return the values of the killed run, and how far its parameters are from the other run's."""
    other = folder.with_name(UNDISTURBED) / EXPORT
    difference = largest_difference(folder / EXPORT, other) if other.exists() else None
    summary = json.loads((folder / "summary.json").read_text())
    return quickstart_values(folder) | {
        "kills": recorded_kills(summary),
        "largest difference": difference,
    }


def recorded_kills(summary: Mapping[str, Any]) -> list[str]:
    """Return the processes whose kill the status of a job records."""
    records = [text for attempt in summary["attempts"] for text in attempt["inPlace"]]
    records += [f"{attempt['cause']}: {attempt['message']}" for attempt in summary["attempts"]]
    return [name for name, text in RECORD_OF_KILL.items() if any(map(text.match, records))]


def largest_difference(file: Path, other: Path) -> float:
    """Return the largest absolute difference of a parameter between two safetensors files.

    NaN if a parameter of one file is NaN. Raises KeyError if the files have different names.
    """
    import numpy as np
    from safetensors.numpy import load_file

    mine, theirs = load_file(file), load_file(other)
    names = mine.keys() | theirs.keys()
    # Python's max() can return a number although another one is NaN.
    return float(np.max([abs(mine[name] - theirs[name]).max() for name in names]))


def causes(summary: Mapping[str, Any]) -> list[str]:
    """Return the causes of ended attempts and of replacements in place, oldest first."""
    texts: list[str] = []
    for attempt in reversed(summary["attempts"]):
        texts += [text.split(":")[0] for text in attempt.get("inPlace", [])]
        texts.append(attempt["cause"])
    return texts


def mitigations(summary: Mapping[str, Any]) -> str:
    """Return the mitigations of the newest attempt, or an empty text."""
    newest: str = summary["attempts"][0]["mitigation"]
    return newest


def job(size: str, *options: str, cpu_fault: str = "") -> Callable[..., Command]:
    """Return the command of a throughput run with random weights, see `bench.training`."""

    def command(folder: Path, *, cpu: bool) -> Command:
        script = str(ROOT / "tests" / "bench" / "training" / "train_throughput.py")
        words = [sys.executable, script, "--repeats", "1", "--json", *options]
        words += ["--keep", str(folder)]
        if cpu:
            return [*words, "--device", "CPU", "--quick"], {ENV_FAULT: cpu_fault}
        return [*words, "--device", "GPU", "--size", size], {}

    return command


def job_values(folder: Path) -> dict[str, Any]:
    """Return the values of a throughput run; ratios over 1 mean that ours is faster."""
    result = json.loads((folder / "result.json").read_text())
    values: dict[str, Any] = {
        f"{name}, s a step": round(system["seconds_per_step"], 3)
        for name, system in result["systems"].items()
    }
    values |= {f"{name} over ours": ratios for name, ratios in result["ratios"].items()}
    for logs in folder.glob("ours-*/checkpoints/logs"):
        steps = read_history(logs)
        values |= {"stages": stages(steps), **numbers(steps)}
        summary = json.loads((logs.parents[1] / "job" / "summary.json").read_text())
        values |= {
            "phase": summary["phase"],
            "causes": causes(summary),
            "mitigations": mitigations(summary),
        }
    return values


def median_of_step(steps: Sequence[dict[str, Any]]) -> float:
    """Return the median duration of a step after the first two."""
    counted = [sum(step["seconds"].values()) for step in steps[2:] or steps]
    return round(statistics.median(counted), 3)


def stages(steps: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return median seconds by stage of the steps after the first two that have it."""
    seconds: dict[str, list[float]] = {}
    for step in steps[2:] or steps:
        for stage, value in step["seconds"].items():
            seconds.setdefault(stage, []).append(value)
    return {stage: round(statistics.median(values), 3) for stage, values in seconds.items()}


def numbers(steps: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the other metrics of the last step that has each of them."""
    names = ("mfu", "tflops", "mismatch", "tokens_per_second", "memory", "gib", "kl")
    last: dict[str, float] = {}
    for step in steps:
        for name, value in step.items():
            if isinstance(value, int | float) and any(part in name for part in names):
                last[name] = float(f"{value:.4g}")
    return last


LENGTHS = ("--prompt", "1024", "--response", "256", "--prompts", "8", "--judge-seconds", "0.02")
SHORT = ("--warmup", "2", "--steps", "4", "--systems", "ours")
PAIRED = ("--warmup", "1", "--steps", "3", "--systems", "ours", "trl", "trl-vllm")
BF16 = ("--precision", "BF16")
EAGER = ("--set", "rollout.enforceEager=true")
SMALL_ENGINE = ("--set", "rollout.gpuMemoryUtilization=0.4")
"""Leaves room for the training state of 1.5B parameters on an 80 GB GPU."""
TOO_LARGE = ("--set", "training.tokensPerMicroBatch=100000", "--prompts", "32", "--steps", "2")

RUNS = (
    Run("a", "engine-0.5B", 120, smoke("0.5B"), smoke_values),
    Run("b", UNDISTURBED, 150, quickstart("rollout.enforceEager=true"), quickstart_values),
    Run("c", "job-0.5B", 150, job("0.5B", *LENGTHS, *SHORT, *BF16, *EAGER), job_values),
    Run("d", "engine-0.5B-graphs", 150, smoke("0.5B", "--graphs"), smoke_values),
    Run("d", "vllm-0.5B-graphs", 120, smoke("0.5B", "--graphs", "--alone"), smoke_values),
    Run(
        "d",
        "job-0.5B-FP16",
        120,
        job("0.5B", *LENGTHS, *SHORT, "--precision", "FP16", *EAGER),
        job_values,
    ),
    Run(
        "d",
        "job-0.5B-graphs-compile",
        200,
        job("0.5B", *LENGTHS, *SHORT, *BF16, "--set", "training.compile=true"),
        job_values,
    ),
    Run(
        "d",
        "job-1.5B",
        150,
        job("1.5B", *LENGTHS, *SHORT, *BF16, *EAGER, *SMALL_ENGINE),
        job_values,
    ),
    Run(
        "e",
        "job-0.5B-too-large",
        200,
        job("0.5B", *LENGTHS, *SHORT, *BF16, *EAGER, *TOO_LARGE, cpu_fault="oom@step=2"),
        job_values,
        error_in=shortage_error,
    ),
    Run(
        "f",
        "quickstart-killed",
        260,
        quickstart("rollout.enforceEager=true", killed=True),
        killed_values,
        error_in=kills_error,
    ),
    Run(
        "g",
        "trl-0.5B",
        300,
        job("0.5B", *LENGTHS, *BF16, *PAIRED),
        job_values,
    ),
)
NEEDS = {"f": "b"}
"""Steps that compare their results with those of another step."""
GROUPS = ("abcf", "d", "eg")
"""Steps whose time limits and setup together are at most fifteen minutes."""
SETUP_SECONDS = 120
"""Seconds reserved for unpacking the bundle and compiling its modules."""
