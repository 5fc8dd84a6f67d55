r"""Held-out exact match of the quickstart before and after training, by seed, in real runs.

    PYTHONPATH=tests .venv/bin/python tests/bench/training/quickstart_learning.py \
        [--seeds 0 1 2] [--agent quickstart_langchain] [--json]

With `--agent` an application of crds/samples/agents retrieves and asks the model by itself.
With `--set resources.placement=Disaggregated --set resources.rolloutEngines=2 --set
training.offPolicySteps=1` rollouts are one step off policy. Seeds change data split, model, warm-up
and training. Exits with 1 if a seed gains less than RISE, or answers from passages of other
questions.
"""

import argparse
import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from raggrpo_api.trainer.history import Record, read_history
from raggrpo_quickstart.records import VALIDATION_QUESTIONS

SAMPLES = Path(__file__).parents[3] / "crds" / "samples"
CONTROL_AGENT = """
import {agent}
from quickstart_search import search

others = {others!r}
{agent}.search = lambda query: search(others.get(query, query))
answer = {agent}.answer
"""
"""The application with the passages of other questions."""
WINDOW = 32
"""Number of steps averaged for one point of the curve."""
RISE = 0.25
CONTROL = 0.03
"""Maximum exact match with passages of other questions, which rarely contain the answer."""


def main() -> int:
    """Run every seed and print a table; return 1 unless all have learned."""
    parser = argparse.ArgumentParser(description="what the quickstart learns")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE",
                        dest="changes", help="as of raggrpo run, for a comparison")  # fmt: skip
    parser.add_argument("--agent", default="", help="module of crds/samples/agents")
    options = parser.parse_args()
    summaries = {}
    print("| seed | reward, first 10 steps | last 10 | before | after | rise | control | time |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for seed in options.seeds:
        start = time.monotonic()
        summaries[seed] = run(seed, options.changes, options.agent)
        print(row(seed, summaries[seed], time.monotonic() - start), flush=True)
    print(f"\n| seed | mean reward of {WINDOW} steps after {WINDOW} steps |\n|---|---|")
    for seed, summary in summaries.items():
        print(f"| {seed} | {', '.join(f'{mean:.3f}' for mean in summary['rewardCurve'])} |")
    if options.json:
        print(json.dumps(summaries))
    short = [seed for seed, summary in summaries.items() if not has_learned(summary)]
    if short:
        print(f"too little was learned with seed {', '.join(map(str, short))}", file=sys.stderr)
    return 1 if short else 0


def run(seed: int, changes: Sequence[str] = (), agent: str = "") -> dict[str, Any]:
    """Prepare and run the quickstart in a temporary folder; return its summary."""
    with tempfile.TemporaryDirectory(prefix="raggrpo-quickstart-") as folder:
        _call("raggrpo_quickstart", "--dir", f"{folder}/input", "--seed", str(seed))
        changes = (f"training.seed={seed}", *changes)
        if agent:
            shutil.copytree(SAMPLES / "agents", Path(folder, "code"))
            changes = (*changes, f"rollout.agent.python={agent}:answer")
        summary = _train(Path(folder), "quickstart-agent" if agent else "quickstart", changes)
        if agent:
            summary["exactMatchControl"] = agent_control(Path(folder), agent, changes)
        return summary | {"rewardCurve": curve(read_history(Path(folder, "checkpoints", "logs")))}


def agent_control(folder: Path, agent: str, changes: Sequence[str]) -> float:
    """Return the exact match of the trained model with passages of other questions.

    A wrapper of the application searches for another question, in a job of one step, whose
    validation before training is the control.
    """
    table = pq.read_table(folder / "input" / "validation.parquet")
    questions = table.column("prompt").to_pylist()
    others = dict(zip(questions, questions[1:] + questions[:1], strict=True))
    (folder / "code" / "control.py").write_text(CONTROL_AGENT.format(others=others, agent=agent))
    shutil.rmtree(folder / "input" / "model")
    shutil.copytree(folder / "checkpoints" / "export", folder / "input" / "model")
    control = folder / "control"
    control.mkdir()
    for name in ("input", "code"):
        (folder / name).rename(control / name)
    one_step = ("rollout.agent.python=control:answer", "training.totalSteps=1")
    summary = _train(control, "quickstart-agent", (*changes, *one_step))
    return float(summary["exactMatchBefore"])


def _train(folder: Path, sample: str, changes: Sequence[str]) -> dict[str, Any]:
    """Run a sample in `folder`, which has its input; return its summary."""
    mount = ["--dir", str(folder), "--mount", f"quickstart={folder}"]
    sets = [part for change in changes for part in ("--set", change)]
    _call("raggrpo_cli.main", "run", str(SAMPLES / f"{sample}.yaml"), *mount, *sets)
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return summary


def curve(history: Sequence[Record]) -> list[float]:
    """Return the mean reward of consecutive windows of steps."""
    rewards = [step["reward_mean"] for step in history]
    windows = (rewards[first : first + WINDOW] for first in range(0, len(rewards), WINDOW))
    return [statistics.fmean(each) for each in windows]


def has_learned(summary: Mapping[str, Any]) -> bool:
    """Return whether exact match rose by RISE, and stayed below CONTROL without the answer."""
    rise = summary["exactMatchAfter"] - summary["exactMatchBefore"]
    return bool(rise >= RISE and summary["exactMatchControl"] <= CONTROL)


def row(seed: int, summary: Mapping[str, Any], seconds: float) -> str:
    """Return the table row of a seed: percent of held-out questions ± standard error."""
    before, after = summary["exactMatchBefore"], summary["exactMatchAfter"]
    cells = [
        str(seed),
        f"{summary['rewardFirst']:.3f}",
        f"{summary['rewardLast']:.3f}",
        _percent(before, [before]),
        _percent(after, [after]),
        _percent(after - before, [before, after]),
        _percent(summary["exactMatchControl"], [summary["exactMatchControl"]]),
        f"{seconds:.0f} s",
    ]
    return f"| {' | '.join(cells)} |"


def standard_error(shares: Sequence[float]) -> float:
    """Return the standard error of a sum or difference of shares of the held-out questions.

    An upper bound for the rise, since the questions are the same before and after.
    """
    return math.sqrt(sum(share * (1 - share) for share in shares) / VALIDATION_QUESTIONS)


def _percent(value: float, shares: Sequence[float]) -> str:
    return f"{100 * value:.1f} ± {100 * standard_error(shares):.1f} %"


def _call(module: str, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{module} exited with {done.returncode}:\n{done.stdout}\n{done.stderr}")


if __name__ == "__main__":
    sys.exit(main())
