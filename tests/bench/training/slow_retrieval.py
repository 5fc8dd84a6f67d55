r"""Step time with a slow retriever, with and without off-policy rollouts.

    PYTHONPATH=tests .venv/bin/python tests/bench/training/slow_retrieval.py \
        [--at-once 2 4] [--repeats 3] [--before CHECKOUT] [--json]

The retriever takes 5.6 s per call (log-normal) and `--at-once` calls in parallel; the workload is
that of `train_throughput.py` with prompts of two thirds passages. `--before` measures another
checkout of this project in alternation. Results are in docs/internals/benchmarks.md.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aiohttp import web

from bench.training.slow_judge import delay, serve
from bench.training.train_throughput import environment, judge, run_job, seconds_between, served
from bench.training.workload import Workload, write_model, write_prompts
from bench.training.workload_job import job_of

FEATURE_ROWS = ("G2",)
"""Rows of docs/features.md that this benchmark measures."""
MEDIAN_SECONDS = 5.6
PASSAGE_TOKENS, QUESTION_TOKENS = 256, 128


@dataclass(frozen=True, slots=True)
class System:
    """A measured system: its checkout and its off-policy steps."""

    name: str
    checkout: Path | None
    steps_off: int


def main() -> None:
    parser = argparse.ArgumentParser(description="steps with a slow retriever")
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
    results: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(prefix="raggrpo-bench-") as temporary, judge() as reward:
        folder = Path(temporary)
        write_model(work, folder / "model")
        write_prompts(replace(work, prompt_tokens=QUESTION_TOKENS), folder / "train.jsonl")
        for at_once in options.at_once:
            seconds = results.setdefault(str(at_once), {s.name: [] for s in systems})
            for repeat in range(options.repeats):
                for system in systems:
                    at = folder / f"{at_once}-{repeat}-{systems.index(system)}"
                    with served(Path(__file__).name, f"serve={at_once}") as url:
                        taken = measure(system, work, folder, {"rag": url, "judge": reward}, at)
                    seconds[system.name].append(taken)
                    print(f"{at_once} at once, {system.name}: {taken:.2f} s", flush=True)
    for at_once, by_system in results.items():
        for name, taken in by_system.items():
            ratios = sorted(s / n for s, n in zip(taken, by_system["one step off"], strict=True))
            shown = f"{ratios[0]:.2f} – {statistics.median(ratios):.2f} – {ratios[-1]:.2f}"
            print(
                f"{at_once} at once  {name:<20}{statistics.median(taken):>8.2f} s/step  × {shown}"
            )
    if options.json:
        print(json.dumps({"bench": "slow_retrieval", "seconds": results}))


def measure(
    system: System, work: Workload, inputs: Path, urls: Mapping[str, str], folder: Path
) -> float:
    """Return the median duration of the counted steps in seconds."""
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
    paths = {}
    if system.checkout:
        places = (system.checkout / "operator", system.checkout / "trainer_image")
        paths["PYTHONPATH"] = ":".join(map(str, places))
    _, steps = run_job(job, folder, environment() | paths)
    return statistics.median(seconds_between(steps)[-work.steps :])


def serve_retriever(at_once: int) -> None:
    free = asyncio.Semaphore(at_once)

    async def answer(request: web.Request) -> web.Response:
        question = (await request.json())["q"]
        async with free:
            await asyncio.sleep(delay(question, MEDIAN_SECONDS))
        draw = random.Random(question)
        text = " ".join(f"w{draw.randrange(8000)}" for _ in range(PASSAGE_TOKENS))
        return web.json_response({"results": [{"id": "1", "text": text, "score": 1.0}]})

    serve(answer)


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1].startswith("serve="):
        serve_retriever(int(sys.argv[1].removeprefix("serve=")))
    else:
        main()
