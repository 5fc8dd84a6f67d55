r"""Generation throughput of an agent job next to the built-in mode, on the benchmark model.

    PYTHONPATH=tests .venv/bin/python tests/bench/agents/agent_throughput.py \
        [--repeats 3] [--response-tokens 64] [--threads N] [--quick] [--json]

Both jobs train the same model on the same prompts, one completion per sample. In the agent job, an
application requests it from the gateway, in one process per sample. Jobs take turns; each ratio is
taken within one turn. Processes of the application compete with the engine for the CPUs unless the
engine has fewer threads; on GPUs they do not.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from bench.training.train_throughput import environment, run_job
from bench.training.workload import TINY, Workload, write_model, write_prompts
from bench.training.workload_job import THREADS, job_of

BUILT_IN, AGENT = "built-in", "agent"
APPLICATION = '''
"""Requests one completion with as little work as possible."""
import json
import os
import urllib.request

url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}


def answer(prompt):
    body = {"model": "policy", "messages": [{"role": "user", "content": prompt}]}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]["content"]
'''


def main() -> None:
    parser = argparse.ArgumentParser(description="throughput of agents")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4, help="counted steps of each run")
    parser.add_argument("--response-tokens", type=int, default=64, help="tokens of a completion")
    parser.add_argument("--threads", type=int, default=THREADS, help="threads of the engine")
    parser.add_argument("--quick", action="store_true", help="tiny model, which shows nothing")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    size = TINY if options.quick else {"response_tokens": options.response_tokens}
    work = Workload(warmup=2, steps=options.steps, **size)
    rates: dict[str, list[float]] = {BUILT_IN: [], AGENT: []}
    with tempfile.TemporaryDirectory(prefix="raggrpo-bench-") as temporary:
        inputs = Path(temporary)
        write_model(work, inputs / "model")
        write_prompts(work, inputs / "train.jsonl")
        (inputs / "code").mkdir()
        (inputs / "code" / "app.py").write_text(APPLICATION)
        for repeat in range(options.repeats):
            for kind, measured in rates.items():
                measured.append(
                    rate(work, inputs, inputs / f"{kind}-{repeat}", kind, options.threads)
                )
                print(f"repeat {repeat + 1}: {kind}: {measured[-1]:.0f} tokens/s", flush=True)
    ratios = [agent / own for own, agent in zip(*rates.values(), strict=True)]
    print("ratio: " + " – ".join(f"{f(ratios):.3f}" for f in (min, statistics.median, max)))
    if options.json:
        print(json.dumps({**rates, "ratios": ratios}))


def rate(work: Workload, inputs: Path, folder: Path, kind: str, threads: int) -> float:
    """Train in a separate process; return the median of sampled tokens per second of generation."""
    folder.mkdir()
    job = job_of(work, inputs, folder, {"name": "Contains"})
    job["spec"]["resources"]["cpu"] = str(threads)
    if kind == AGENT:
        make_agent_job(job, work, inputs)
    counted = run_job(job, folder, environment())[1][-work.steps :]
    assert {step["response_tokens"] for step in counted} == {work.response_tokens}
    tokens = work.samples * work.response_tokens
    return statistics.median(tokens / step["seconds"]["generate"] for step in counted)


def make_agent_job(job: dict[str, Any], work: Workload, inputs: Path) -> None:
    """Change a job so that an application requests its completions."""
    spec = job["spec"]
    spec["rollout"]["agent"] = {
        "python": "app:answer",
        "request": "{prompt}",
        "processes": work.samples,
    }
    spec["reward"]["codeFrom"] = {"path": str(inputs / "code")}


if __name__ == "__main__":
    main()
