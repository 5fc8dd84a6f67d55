"""Run the main job on one GPU, step by step: `make gpu-job [STEPS=a,b]`.

    PYTHONPATH=operator:trainer_image:tests python -m gpu.job --out DIR [--steps a,b] [--list]

Every run has a time limit and one line of result; a failed run does not stop the next. DIR receives
results.json, table.md and logs.tar.gz. Docs: docs/internals/gpu.md.
"""

import argparse
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from gpu.job.runs import GROUPS, NEEDS, RUNS, SETUP_SECONDS, Run

END_SECONDS = 20
"""Seconds from SIGTERM to SIGKILL."""
INTERRUPTED = 130
"""Exit code after Ctrl-C or SIGTERM, as of shells."""
FAILURE = re.compile(r"\bfailed \(|^\w*error:|^[\w.]+(?:Error|Exception)\b")
"""Pattern of a line that states why a command failed, followed by paths and hints."""
WEIGHTS = (".safetensors", ".distcp")
"""Suffixes of files with weights."""
MAX_KEPT_BYTES = 64 * 2**20
"""Maximum size of a file of weights after its run; those of all runs would not fit on the disk."""


def main() -> int:
    options = arguments()
    chosen = [run for run in RUNS if run.step in options.steps]
    if options.list:
        print("\n".join(f"{run.step}  {run.name:<24}{run.limit:>4} s" for run in RUNS))
        for group in GROUPS:
            seconds = SETUP_SECONDS + sum(run.limit for run in RUNS if run.step in group)
            print(f"STEPS={group}: up to {seconds} s with {SETUP_SECONDS} s for the setup")
        return 0
    work = options.work
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    options.out.mkdir(parents=True, exist_ok=True)
    machine = describe_machine()
    print(", ".join(f"{name} {value}" for name, value in machine.items()), flush=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    results = []
    try:
        for run in chosen:
            results.append(measure(run, work, cpu=options.cpu))
            write_results(options.out, machine, results)
            print(line_of(results[-1]), flush=True)
            delete_weights(work / run.name)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        return INTERRUPTED
    finally:
        write_logs(options.out, work)
    return 1 if any(result["error"] for result in results) else 0


def interrupt(*_: object) -> None:
    """Raise KeyboardInterrupt; later signals must not interrupt the end of the processes."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu.job", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("gpu-results"))
    parser.add_argument(
        "--work", type=Path, default=Path("/tmp/raggrpo-gpu"), help="scratch folder"
    )
    parser.add_argument("--steps", default="abcdefg", help="letters, with or without commas")
    parser.add_argument("--list", action="store_true", help="print runs, time limits and groups")
    parser.add_argument(
        "--cpu", action="store_true", help="test the runs with tiny models on a CPU"
    )
    options = parser.parse_args()
    for step, other in NEEDS.items():
        if step in options.steps and other not in options.steps:
            parser.error(f"step {step} compares its results with step {other}; select both")
    return options


def measure(run: Run, work: Path, *, cpu: bool) -> dict[str, Any]:
    """Run one command and return its measured values, or an error."""
    folder = work / run.name
    folder.mkdir()
    (work / "logs").mkdir(exist_ok=True)
    log = work / "logs" / f"{run.name}.log"
    start = time.monotonic()
    result: dict[str, Any] = {"step": run.step, "name": run.name, "error": "", "values": {}}
    try:
        command, env = run.command(folder, cpu=cpu)
        error = execute(command, os.environ | env, log, run.limit)
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}"
    result["seconds"] = round(time.monotonic() - start, 1)
    try:
        result["values"] = run.values(folder)
        error = error or run.error_in(result["values"], cpu=cpu)
    except Exception as failure:
        error = error or f"no result: {type(failure).__name__}: {failure}"
    return result | {"error": error}


def execute(command: Sequence[str], env: dict[str, str], log: Path, limit: int) -> str:
    """Run a command in its own process group; return an error or an empty text."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=env, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        code = process.wait(limit)
    except subprocess.TimeoutExpired:
        return f"no end after {limit} s: {reason(log)}"
    finally:
        end_group(process)
    return f"exit code {code}: {reason(log)}" if code else ""


def end_group(process: "subprocess.Popen[bytes]") -> None:
    """End the command and the processes that it left, which would keep the GPU's memory."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def reason(log: Path) -> str:
    """Return the last line that reports a failure, or else the last line."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    failures = [line for line in lines if FAILURE.search(line)]
    return (failures or lines or ["no output"])[-1].strip()[:300]


def delete_weights(folder: Path) -> None:
    """Delete the large files of weights that a run left."""
    for file in folder.rglob("*"):
        if file.suffix in WEIGHTS and file.stat().st_size > MAX_KEPT_BYTES:
            file.unlink()


def write_logs(out: Path, work: Path) -> None:
    """Write all files of the runs except weights to logs.tar.gz."""
    with tarfile.open(out / "logs.tar.gz", "w:gz") as tar:
        for folder in sorted(work.iterdir()):
            tar.add(folder, folder.name, filter=without_weights)


def without_weights(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if Path(member.name).suffix in WEIGHTS else member


def line_of(result: dict[str, Any]) -> str:
    """Return the one-line result of a run."""
    shown = ", ".join(f"{name} {value}" for name, value in result["values"].items())
    state = f"FAILED ({result['error']})" if result["error"] else "ok"
    return f"{result['step']} {result['name']}: {state}, {result['seconds']:.0f} s; {shown}"


def write_results(out: Path, machine: dict[str, str], results: Sequence[dict[str, Any]]) -> None:
    """Write results.json, and the table for the docs."""
    document = {"machine": machine, "runs": list(results)}
    (out / "results.json").write_text(json.dumps(document, indent=1))
    rows = ["| step | run | result | measured |", "|---|---|---|---|"]
    for result in results:
        shown = "; ".join(f"{name} {value}" for name, value in result["values"].items())
        state = "failed" if result["error"] else f"ok, {result['seconds']:.0f} s"
        rows.append(f"| {result['step']} | {result['name']} | {state} | {shown} |")
    (out / "table.md").write_text("\n".join(rows) + "\n")


def describe_machine() -> dict[str, str]:
    """Return the GPU and the versions that determine the results."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        gpu = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        gpu = "no GPU"
    packages = {name: version(name) for name in ("torch", "vllm", "ray", "transformers", "trl")}
    return {"GPU": gpu, "Python": platform.python_version(), **packages}


def version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


if __name__ == "__main__":
    sys.exit(main())
