"""How much of a slow retriever's time a step still waits for, with and without rollouts ahead.

    python tests/bench/slow_retrieval.py [--at-once 2 4] [--repeats 3] [--before CHECKOUT] [--json]

The retriever takes 5.6 s a call (log-normal) and so many calls at once; the rest is the workload
of `train_throughput.py`, its prompts two thirds passage. `--before` measures another checkout of
this project in the same turns. docs/benchmarks.md has the figures.
"""

import argparse
import asyncio
import json
import random
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web
from bench_job import job_of
from bench_judge import delay
from bench_process import end, run_watched
from bench_workload import Workload, write_model
from train_throughput import TIMEOUT_SECONDS, environment, judge

from raggrpo_api.history import read_history

MEDIAN_SECONDS = 5.6
PASSAGE_TOKENS, QUESTION_TOKENS = 256, 128


@dataclass(frozen=True, slots=True)
class System:
    """One way to train: the code, and whether rollouts are made one step ahead."""

    name: str
    checkout: Path | None
    steps_off: int


def main() -> None:
    parser = argparse.ArgumentParser(description="steps beside a slow retriever")
    parser.add_argument("--at-once", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4, help="counted steps")
    parser.add_argument("--before", type=Path, help="another checkout of this project")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    systems = [System("on policy", None, 0), System("one step off", None, 1)]
    if options.before:
        before = options.before.resolve()
        systems += [System("before, on policy", before, 0), System("before, one off", before, 1)]
    work = Workload(prompt_tokens=PASSAGE_TOKENS + QUESTION_TOKENS, warmup=2, steps=options.steps)
    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(prefix="raggrpo-bench-") as made, judge() as reward:
        folder = Path(made)
        write_model(work, folder / "model")
        write_questions(work, folder / "train.jsonl")
        for at_once in options.at_once:
            seconds = found.setdefault(str(at_once), {s.name: [] for s in systems})
            for repeat in range(options.repeats):
                for system in systems:
                    at = folder / f"{at_once}-{repeat}-{systems.index(system)}"
                    with retriever(at_once) as url:
                        taken = measure(system, work, folder, {"rag": url, "judge": reward}, at)
                    seconds[system.name].append(taken)
                    print(f"{at_once} at once, {system.name}: {taken:.2f} s", flush=True)
    for at_once, by_system in found.items():
        for name, taken in by_system.items():
            ratios = sorted(s / n for s, n in zip(taken, by_system["one step off"], strict=True))
            shown = f"{ratios[0]:.2f} – {statistics.median(ratios):.2f} – {ratios[-1]:.2f}"
            print(
                f"{at_once} at once  {name:<20}{statistics.median(taken):>8.2f} s/step  × {shown}"
            )
    if options.json:
        print(json.dumps({"bench": "slow_retrieval", "seconds": found}))


def write_questions(work: Workload, file: Path) -> None:
    draw = random.Random(0)
    texts = [_words(draw, QUESTION_TOKENS) for _ in range(work.total_steps * work.prompts)]
    file.write_text("".join(json.dumps({"prompt": t, "answer": ""}) + "\n" for t in texts))


def measure(
    system: System, work: Workload, inputs: Path, urls: Mapping[str, str], folder: Path
) -> float:
    """Return the median seconds of the counted steps."""
    folder.mkdir()
    job = job_of(work, inputs, folder, {"name": "Http", "url": urls["judge"]})
    spec: dict[str, Any] = job["spec"]
    spec["retrieval"] = {
        "mode": "Prompt",
        "promptTemplate": "{passages} {prompt}",
        "passageTemplate": "{text}",
        "maxPassageTokens": PASSAGE_TOKENS,
        "endpoints": [
            {
                "name": "slow",
                "protocol": "Http",
                "url": urls["rag"],
                "body": {"q": "{question}"},
                "topK": 1,
            }
        ],
    }
    spec["training"]["offPolicySteps"] = system.steps_off
    if system.steps_off:
        spec["resources"] |= {"placement": "Disaggregated", "rolloutEngines": 1}
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    command = [sys.executable, "-m", "raggrpo_cli.main", "run", str(folder / "job.yaml")]
    command += ["--dir", str(folder / "job")]
    paths = {}
    if system.checkout:
        places = (system.checkout / "operator", system.checkout / "trainer_image")
        paths["PYTHONPATH"] = ":".join(map(str, places))
    run_watched(command, environment() | paths, folder / "run.log", TIMEOUT_SECONDS)
    steps = read_history(folder / "checkpoints" / "logs")
    ends = [datetime.fromisoformat(step["time"]) for step in steps]
    taken = [(b - a).total_seconds() for a, b in pairwise(ends)]
    return statistics.median(taken[-work.steps :])


@contextmanager
def retriever(at_once: int) -> Iterator[str]:
    """Serve the retriever from a process of its own until the block ends; yields its URL."""
    process = subprocess.Popen(
        [sys.executable, __file__, f"serve={at_once}"], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().decode().strip()
    finally:
        end(process)


def serve(at_once: int) -> None:
    free = asyncio.Semaphore(at_once)

    async def answer(request: web.Request) -> web.Response:
        question = (await request.json())["q"]
        async with free:
            await asyncio.sleep(delay(question, MEDIAN_SECONDS))
        text = _words(random.Random(question), PASSAGE_TOKENS)
        return web.json_response({"results": [{"id": "1", "text": text, "score": 1.0}]})

    app = web.Application()
    app.router.add_post("/", answer)
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/", flush=True)
    web.run_app(app, sock=listener, print=None, access_log=None)


def _words(draw: random.Random, number: int) -> str:
    return " ".join(f"w{draw.randrange(8000)}" for _ in range(number))


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1].startswith("serve="):
        serve(int(sys.argv[1].removeprefix("serve=")))
    else:
        main()
