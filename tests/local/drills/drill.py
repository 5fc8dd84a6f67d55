"""Kills every process of a real local run at every kind of moment and compares the result.

    python tests/local/drills/drill.py [--table docs/internals/drills.md] [--only driver/step]

Each run trains 12 steps of a tiny model with real Ray, vLLM, FSDP2 and BM25 retrieval, 1 rank,
FP32. It must end at its target with bitwise the same parameters as an uninterrupted run.
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
from tools.kind.results_table import commit_of

STEPS = 12
SAVE_EVERY = 3
TEMPLATE = "{passages} {prompt} $A_SECRET $(A_SECRET) $$"
"""Nothing on its way may expand what its author wrote."""
REFUSALS = {
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
HELD = {"step": "", "checkpoint": "pause@save=6:complete:4", "between": "slow-step@step=8:4"}
"""Faults that hold the run still, so that the kill meets exactly that moment."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    weights: str
    """SHA-256 of the exported parameters."""
    summary: dict[str, Any]
    seconds: float
    left_over: list[str]
    """Processes of the run that outlived it."""

    @property
    def causes(self) -> list[str]:
        """Return why attempts ended, and what was replaced in place."""
        found = []
        for attempt in reversed(self.summary["attempts"]):
            found += [text.split(":")[0] for text in attempt.get("inPlace", [])]
            if attempt["cause"] != "Succeeded":
                found.append(attempt["cause"])
        return found


def make_input(folder: Path) -> Path:
    """Write model, data, corpus and job file; returns the job file."""
    words = [*(f"w{i}" for i in range(60)), *(f"c{i}" for i in range(60))]
    model = write_word_model(folder / "model", words)
    # Half of the vocabulary is right, so that an untrained model already earns varied rewards.
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
    """One job folder and the `raggrpo run` processes on it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder, self.dir, self.job = folder, folder / "job", make_input(folder)
        self._began = time.monotonic()
        self._marks: set[str] = set()

    def asks(self, url: str) -> None:
        """Take passages from this service; remembered answers would hide what happens to it."""
        job = yaml.safe_load(self.job.read_text())
        job["spec"]["retrieval"]["endpoints"] = [{"name": "kb", "url": url, "cache": False}]
        self.job.write_text(yaml.safe_dump(job))

    def marks(self) -> set[str]:
        self.status()
        return self._marks

    def start(self, fault: str = "", *changes: str) -> "subprocess.Popen[str]":
        """Start `raggrpo run` with `--set` changes; its output goes to a file.

        What a shell starts in the background ignores Ctrl-C, and so would all that it starts.
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
            raise AssertionError(f"raggrpo run ended with {code}:\n{self.log()[-3000:]}")
        weights = self._folder / "checkpoints" / "export" / "model.safetensors"
        return Outcome(
            weights=hashlib.sha256(weights.read_bytes()).hexdigest(),
            summary=json.loads((self.dir / "summary.json").read_text()),
            seconds=time.monotonic() - self._began,
            left_over=self.left_over(),
        )

    def refused(self, job_folder: Path, *changes: str, endpoint: str = "") -> str:
        """Run the job on another job folder; return what it says when it is refused."""
        command = self._command(job_folder, changes)
        command += ["--endpoint", endpoint] if endpoint else []
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said = done.stdout + done.stderr
        assert done.returncode in REFUSALS, said
        assert "Traceback" not in said
        return said

    def _command(self, job_folder: Path, changes: Sequence[str]) -> list[str]:
        command = [sys.executable, "-m", "raggrpo_cli.main", "run", str(self.job)]
        command += [part for change in changes for part in ("--set", change)]
        return [*command, "--dir", str(job_folder)]

    def log(self) -> str:
        return (self._folder / "run.log").read_text()

    def status(self) -> dict[str, Any]:
        """Return the job's status as the run keeps it."""
        try:
            state = json.loads((self.dir / "state.json").read_text())
        except FileNotFoundError:
            return {}
        self._marks.add(state["mark"])
        status: dict[str, Any] = state["status"]
        return status

    def wait_for(self, condition: Callable[[dict[str, Any]], bool], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not condition(self.status()):
            if time.monotonic() > deadline:
                raise AssertionError(f"never seen: {what}; {self.log()[-3000:]}")
            time.sleep(0.05)

    def processes(self) -> Iterator[psutil.Process]:
        """Yield the processes that carry a mark of this folder's runs."""
        for process in psutil.process_iter():
            try:
                env = process.environ()
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
            mark = env.get(ENV_RUN_MARK, "")
            if mark and mark.split(".")[0] in self.marks():
                yield process

    def left_over(self) -> list[str]:
        """Return what is still alive a few seconds after the end."""
        deadline = time.monotonic() + 15
        while found := [" ".join(p.cmdline())[:80] for p in self.processes() if p.is_running()]:
            if time.monotonic() > deadline:
                break
            time.sleep(0.2)
        return found

    def victim(self, name: str) -> psutil.Process:
        """Return the process of the present attempt that plays this part."""
        titles = {
            "driver": r"raggrpo_trainer\b(?!\.)",
            "rank": "ray::RankActor",
            "engine": "ray::RolloutActor",
            "head": "gcs_server",
        }
        title = re.compile(titles[name])
        found = [p for p in self.processes() if any(map(title.search, p.cmdline()))]
        # Keepers carry the command of what they keep: the newest match is the process itself.
        return max(found, key=lambda p: p.create_time())


def true_condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the condition of this type if it is true, else nothing."""
    found = (c for c in status.get("conditions", []) if c["type"] == kind)
    return next((c for c in found if c["status"] == "True"), {})


def strike(run: Run, victim: str, moment: str) -> Outcome:
    """Train with one process killed at one moment; `run` and `ctrl-c` are run a second time."""
    process = run.start(HELD[moment])
    match moment:
        case "step":
            run.wait_for(lambda s: s.get("progress", {}).get("step", 0) >= 4, "step 4")
            time.sleep(random.uniform(0.0, 0.3))
        case "checkpoint":
            run.wait_for(_is_held_in_save, "the save of step 6")
        case "between":
            run.wait_for(lambda s: s.get("progress", {}).get("step", 0) == 7, "step 7")
    match victim:
        case "run" | "ctrl-c":
            process.send_signal(signal.SIGKILL if victim == "run" else signal.SIGINT)
            process.wait(60)
            process = run.start()
        case _:
            run.victim(victim).kill()
    return run.finish(process)


def _is_held_in_save(status: dict[str, Any]) -> bool:
    progress = status.get("progress", {})
    return progress.get("step", 0) == 6 and progress.get("stage") == "Checkpointing"


def table(rows: list[tuple[str, str, Outcome]], undisturbed: Outcome) -> str:
    lines = [
        "| killed | moment | causes named | attempts | lost steps | parameters | left over |",
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
    """Run the drills that were asked for; 1 when one of them changed the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", type=Path, help="file that receives the table")
    parser.add_argument("--only", default="", help="VICTIM or VICTIM/MOMENT instead of all")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="raggrpo-drill-"))
    try:
        return _drill(folder, arguments.only, arguments.table)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _drill(folder: Path, only: str, target: Path | None) -> int:
    commit = commit_of(Path(__file__).parents[3])  # of what is tested, whatever comes meanwhile
    plain = Run(folder / "undisturbed")
    undisturbed = plain.finish(plain.start())
    rows = []
    for victim in VICTIMS:
        for moment in MOMENTS:
            if not f"{victim}/{moment}".startswith(only):
                continue
            outcome = strike(Run(folder / f"{victim}-{moment}"), victim, moment)
            rows.append((victim, moment, outcome))
            print(table(rows[-1:], undisturbed).splitlines()[-1], flush=True)
    text = table(rows, undisturbed)
    if target is not None:
        target.write_text(PAGE.format(commit=commit, table=text), encoding="utf-8")
    failed = [o for _, _, o in rows if o.weights != undisturbed.weights or o.left_over]
    failed += [o for victim, _, o in rows if victim == "driver" and lost_steps(o)]
    return 1 if failed else 0


PAGE = """# Drills on one machine

`make drill` writes this page. Each row is a run of 12 steps on one machine with real Ray, vLLM,
FSDP2 (1 rank, FP32) and BM25 retrieval, and a checkpoint every 3 steps. One process is killed by
SIGKILL (Ctrl-C: SIGINT) during a step, while step 6 is saved, or between two steps. `run` is
`raggrpo run`; it and Ctrl-C are followed by a second `raggrpo run`. Every run reached step 12.
*parameters* compares the exported model with that of an undisturbed run, byte by byte.

{table}"""


if __name__ == "__main__":
    sys.exit(main())
