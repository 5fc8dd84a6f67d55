"""Kill each process of a real local run at each kind of moment and compare the results.

    PYTHONPATH=tests python tests/local/drills/drill.py [--table PAGE] [--only driver/step]
        [--set training.lora.rank=8]

Each run trains 12 steps of a tiny model with real Ray, vLLM, FSDP2 and BM25 retrieval, 1 rank,
FP32. It must reach its last step with bitwise the same parameters as an uninterrupted run.
"""

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from raggrpo_api.names import ENV_FAULT, ENV_RUN_MARK
from raggrpo_api.trainer.exit_codes import ExitCode
from support.builders.data.rows import write_rows
from support.builders.operator.jobs import data_of, make_manifest
from support.builders.trainer.word_model import write_word_model

STEPS = 12
SAVE_EVERY = 3
TEMPLATE = "{passages} {prompt} $A_SECRET $(A_SECRET) $$"
"""Placeholders that no component between job file and trainer may expand."""
REJECTIONS = {
    ExitCode.CONFIG_ERROR,
    ExitCode.DATA_ERROR,
    ExitCode.PREFLIGHT_FAILED,
    ExitCode.RETRIEVAL_UNAVAILABLE,
    ExitCode.CHECKPOINT_INCOMPATIBLE,
    ExitCode.CHECKPOINT_PATH_IN_USE,
}
DEADLINE_SECONDS = 400
VICTIMS = ("driver", "rank", "engine", "head", "run", "ctrl-c")
MOMENTS = ("step", "checkpoint", "between")
PAUSE_FAULTS = {
    "step": "",
    "checkpoint": "pause@save=6:complete:4",
    "between": "slow-step@step=8:4",
}
"""Faults that pause the run at each moment, so that the process is killed at that moment."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a finished run."""

    weights: str
    """SHA-256 of the exported parameters."""
    summary: dict[str, Any]
    seconds: float
    left_over: list[str]
    """Command lines of the processes that outlived the run."""

    @property
    def causes(self) -> list[str]:
        """Return the causes of ended attempts and of replacements in place, oldest first."""
        causes = []
        for attempt in reversed(self.summary["attempts"]):
            causes += [text.split(":")[0] for text in attempt.get("inPlace", [])]
            if attempt["cause"] != "Succeeded":
                causes.append(attempt["cause"])
        return causes


def make_input(folder: Path) -> Path:
    """Write model, data, corpus and job file; return the path of the job file."""
    words = [*(f"w{i}" for i in range(60)), *(f"c{i}" for i in range(60))]
    model = write_word_model(folder / "model", words)
    # Half of the vocabulary is a correct answer: an untrained model already earns varied rewards.
    answer = " ".join(f"c{i}" for i in range(60))
    rows = [{"prompt": f"w{i} ?", "answer": answer} for i in range(60)]
    write_rows(folder / "train.jsonl", rows)
    corpus = [{"id": str(i), "contents": f"w{i} c{i}"} for i in range(60)]
    write_rows(folder / "corpus.jsonl", corpus)
    job = make_manifest(
        "drill",
        {
            "model": {"path": str(model)},
            "data": data_of(folder / "train.jsonl", batch=8, prompt=48, response=8)
            | {"validationFiles": [str(folder / "train.jsonl")]},
            "rollout": {"n": 4, "temperature": 1.0},
            "training": {
                "totalSteps": STEPS,
                "learningRate": 1e-3,
                "learningRateSchedule": "Cosine",
                "decaySteps": STEPS,
                "minLearningRateRatio": 0.1,
                "precision": "FP32",
            },
            "retrieval": {
                "mode": "Prompt",
                "promptTemplate": TEMPLATE,
                "passageTemplate": "{text} ",
                "maxPassageTokens": 8,
                "shufflePassages": True,
                "endpoints": [{"name": "kb", "managed": {"corpus": str(folder / "corpus.jsonl")}}],
            },
            "reward": {"functions": [{"name": "F1"}]},
            "validation": {"everySteps": SAVE_EVERY, "maxSamples": 4},
            "checkpoint": {
                "path": str(folder / "checkpoints"),
                "everySteps": SAVE_EVERY,
                "bestBy": "ValidationReward",
            },
            "resources": {"device": "CPU"},
            "recovery": {"backoffSeconds": 0},
        },
    )
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    return path


class Run:
    """A job folder and the `raggrpo run` processes that work on it."""

    def __init__(self, folder: Path, make_input: Callable[[Path], Path] = make_input) -> None:
        folder.mkdir(parents=True)
        self._folder, self.dir, self.job = folder, folder / "job", make_input(folder)
        self._started = time.monotonic()
        self._marks: set[str] = set()

    def move(self, folder: Path) -> None:
        """Move all files of the job to another folder, and change the paths in the job file."""
        shutil.copytree(self._folder, folder)
        shutil.rmtree(self._folder)
        job = folder / self.job.name
        job.write_text(job.read_text().replace(str(self._folder), str(folder)))
        self._folder, self.dir, self.job = folder, folder / "job", job

    def use_retriever(self, url: str) -> None:
        """Retrieve from the service at `url`, uncached so that its outages are noticed."""
        job = yaml.safe_load(self.job.read_text())
        job["spec"]["retrieval"]["endpoints"] = [{"name": "kb", "url": url, "cache": False}]
        self.job.write_text(yaml.safe_dump(job))

    def marks(self) -> set[str]:
        self.status()
        return self._marks

    def start(self, fault: str = "", *changes: str) -> "subprocess.Popen[str]":
        """Start `raggrpo run` with `--set` changes; its output goes to run.log.

        SIGINT is reset: a shell lets its background processes ignore it, and children inherit that.
        """
        log = (self._folder / "run.log").open("a")
        return subprocess.Popen(
            ["env", "--default-signal=INT", *self._command(self.dir, changes)],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | {ENV_FAULT: fault, "A_SECRET": "hunter2"},
            umask=0o022,
            text=True,
        )

    def finish(self, process: "subprocess.Popen[str]") -> Outcome:
        code = process.wait(DEADLINE_SECONDS)
        if code != 0:
            raise AssertionError(f"raggrpo run exited with {code}:\n{self.log()[-3000:]}")
        weights = self._folder / "checkpoints" / "export" / "model.safetensors"
        return Outcome(
            weights=hashlib.sha256(weights.read_bytes()).hexdigest(),
            summary=json.loads((self.dir / "summary.json").read_text()),
            seconds=time.monotonic() - self._started,
            left_over=self.left_over(),
        )

    def rejection(self, job_folder: Path, *changes: str, endpoint: str = "") -> str:
        """Run the job on another job folder, where it must be rejected; return its output."""
        command = self._command(job_folder, changes)
        command += ["--endpoint", endpoint] if endpoint else []
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        output = done.stdout + done.stderr
        assert done.returncode in REJECTIONS, output
        assert "Traceback" not in output
        return output

    def _command(self, job_folder: Path, changes: Sequence[str]) -> list[str]:
        command = [sys.executable, "-m", "raggrpo_cli.main", "run", str(self.job)]
        command += [part for change in changes for part in ("--set", change)]
        return [*command, "--dir", str(job_folder)]

    def log(self) -> str:
        return (self._folder / "run.log").read_text()

    def status(self) -> dict[str, Any]:
        """Return the job status stored in the job folder; empty before the first write."""
        try:
            state = json.loads((self.dir / "state.json").read_text())
        except FileNotFoundError:
            return {}
        self._marks.add(state["mark"])
        status: dict[str, Any] = state["status"]
        return status

    def wait_for(self, condition: Callable[[dict[str, Any]], bool], event: str) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not condition(self.status()):
            if time.monotonic() > deadline:
                raise AssertionError(f"never observed: {event}; {self.log()[-3000:]}")
            time.sleep(0.05)

    def processes(self) -> Iterator[psutil.Process]:
        """Yield the processes whose environment carries the mark of a run on this folder."""
        for process in psutil.process_iter():
            try:
                env = process.environ()
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
            mark = env.get(ENV_RUN_MARK, "")
            if mark and mark.split(".")[0] in self.marks():
                yield process

    def left_over(self) -> list[str]:
        """Return the command lines of processes still alive 15 s after the run."""
        deadline = time.monotonic() + 15
        while commands := [" ".join(p.cmdline())[:80] for p in self.processes() if p.is_running()]:
            if time.monotonic() > deadline:
                break
            time.sleep(0.2)
        return commands

    def victim(self, name: str) -> psutil.Process:
        """Return the newest process with this role: driver, rank, engine or head."""
        titles = {
            "driver": r"raggrpo_trainer\b(?!\.)",
            "rank": "ray::RankActor",
            "engine": "ray::RolloutActor",
            "head": "gcs_server",
        }
        title = re.compile(titles[name])
        matches = [p for p in self.processes() if any(map(title.search, p.cmdline()))]
        # A keeper shows the command of its child: the newest match is the process itself.
        return max(matches, key=lambda p: p.create_time())


def true_condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the condition of this type if it is True, else an empty dict."""
    conditions = (c for c in status.get("conditions", []) if c["type"] == kind)
    return next((c for c in conditions if c["status"] == "True"), {})


def run_drill(run: Run, victim: str, moment: str, *changes: str) -> Outcome:
    """Train with one process killed at one moment; start a second run for `run` and `ctrl-c`."""
    process = run.start(PAUSE_FAULTS[moment], *changes)
    match moment:
        case "step":
            run.wait_for(lambda s: s.get("progress", {}).get("step", 0) >= 4, "step 4")
            time.sleep(random.uniform(0.0, 0.3))
        case "checkpoint":
            run.wait_for(_is_paused_in_save, "the save of step 6")
        case "between":
            run.wait_for(lambda s: s.get("progress", {}).get("step", 0) == 7, "step 7")
    match victim:
        case "run" | "ctrl-c":
            process.send_signal(signal.SIGKILL if victim == "run" else signal.SIGINT)
            process.wait(60)
            process = run.start("", *changes)
        case _:
            run.victim(victim).kill()
    return run.finish(process)


def _is_paused_in_save(status: dict[str, Any]) -> bool:
    progress = status.get("progress", {})
    return progress.get("step", 0) == 6 and progress.get("stage") == "Checkpointing"


def table(rows: list[tuple[str, str, Outcome]], undisturbed: Outcome) -> str:
    lines = [
        "| killed | moment | causes | attempts | lost steps | parameters | processes left |",
        "|---|---|---|---|---|---|---|",
    ]
    for victim, moment, outcome in rows:
        attempts = outcome.summary["attempts"]
        lost = lost_steps(outcome)
        same = "bitwise equal" if outcome.weights == undisturbed.weights else "DIFFERENT"
        causes = ", ".join(outcome.causes) or "none"
        left = ", ".join(outcome.left_over) or "nothing"
        lines.append(
            f"| {victim} | {moment} | {causes} | {len(attempts)} | {lost} | {same} | {left} |"
        )
    return "\n".join(lines) + "\n"


def lost_steps(outcome: Outcome) -> int:
    return sum(each["lostSteps"] for each in outcome.summary["attempts"])


def main() -> int:
    """Run the selected drills; return 1 if one of them changed the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", type=Path, help="file that receives the table")
    parser.add_argument("--only", default="", help="VICTIM or VICTIM/MOMENT instead of all")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE",
                        dest="changes", help="as of raggrpo run")  # fmt: skip
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="raggrpo-drill-"))
    try:
        return _drill(folder, arguments.only, arguments.table, arguments.changes)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _drill(folder: Path, only: str, target: Path | None, changes: Sequence[str]) -> int:
    plain = Run(folder / "undisturbed")
    undisturbed = plain.finish(plain.start("", *changes))
    rows = []
    for victim in VICTIMS:
        for moment in MOMENTS:
            if not f"{victim}/{moment}".startswith(only):
                continue
            outcome = run_drill(Run(folder / f"{victim}-{moment}"), victim, moment, *changes)
            rows.append((victim, moment, outcome))
            print(table(rows[-1:], undisturbed).splitlines()[-1], flush=True)
    text = table(rows, undisturbed)
    if target is not None:
        target.write_text(PAGE.format(table=text), encoding="utf-8")
    failed = [o for _, _, o in rows if o.weights != undisturbed.weights or o.left_over]
    failed += [o for victim, _, o in rows if victim == "driver" and lost_steps(o)]
    return 1 if failed else 0


PAGE = """# Drills on one machine

`make drill` writes this page. Each row is a run of 12 steps on one machine with real Ray, vLLM,
FSDP2 (1 rank, FP32) and BM25 retrieval, and a checkpoint every 3 steps. One process is killed by
SIGKILL (Ctrl-C: SIGINT) during a step, while step 6 is saved, or between two steps. `run` is
`raggrpo run`; after it is killed, and after Ctrl-C, it is started again. Every run reached step 12.
*parameters* compares the exported model with that of an uninterrupted run, byte by byte.

{table}"""


if __name__ == "__main__":
    sys.exit(main())
