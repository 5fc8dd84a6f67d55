r"""Upper bounds for a step of train_throughput on this machine, in a separate process.

    PYTHONPATH=tests .venv/bin/python tests/bench/training/throughput_bounds.py \
        WORKLOAD.json FOLDER WHAT RESULT.json

WHAT is `products` for the rate of matrix products, else vLLM arguments as JSON: then the offline
throughput of vLLM on the prompts of the workload is measured, without logprobs or seeds.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from bench.training.workload import Workload

REPEATS = 5
SQUARE = 2048
FLOPS = 2
"""FLOP of a multiply-add."""
PASSES = 3
"""One forward product, and two backward for the gradients of both factors."""


def main() -> None:
    """Write the requested measurement."""
    work_file, folder, what, result = sys.argv[1:]
    work = Workload(**json.loads(Path(work_file).read_text()))
    measured = (
        products(work) if what == "products" else offline(work, Path(folder), json.loads(what))
    )
    Path(result).write_text(json.dumps(measured))


def products(work: Workload) -> dict[str, float]:
    """Return FLOP/s of large square products and of products in the shapes of the model."""
    import torch

    rows = work.prompt_tokens + work.n * work.response_tokens
    shapes = {
        "square": (SQUARE, SQUARE, SQUARE),
        "layer": (rows, work.hidden, work.intermediate),
    }
    rates = {}
    dtype = getattr(torch, work.dtype)
    for name, (m, k, n) in shapes.items():
        a, b = torch.randn(m, k, dtype=dtype), torch.randn(k, n, dtype=dtype)
        seconds = seconds_of(partial(torch.mm, a, b), times=max(1, SQUARE**3 // (m * k * n)))
        rates[name] = FLOPS * m * k * n / seconds
    return rates


def offline(work: Workload, folder: Path, settings: Mapping[str, Any]) -> dict[str, float]:
    """Return `tokens_per_second` of vLLM on the prompts of consecutive steps."""
    from transformers import PreTrainedTokenizerFast
    from vllm import LLM, SamplingParams

    length = work.prompt_tokens + work.response_tokens
    engine = LLM(
        model=str(folder / "model"),
        dtype=work.dtype,
        max_model_len=length,
        max_num_seqs=work.samples,
        max_num_batched_tokens=work.samples * length,
        kv_cache_memory_bytes=2**30,
        disable_log_stats=True,
        **settings,
    )
    sampling = SamplingParams(n=work.n, temperature=1.0, max_tokens=work.response_tokens)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / "model")
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    prompts = [{"prompt_token_ids": tokenizer(row["prompt"])["input_ids"]} for row in rows]
    rates = []
    for first in range(0, len(prompts), work.prompts):
        start = time.monotonic()
        answers = engine.generate(prompts[first : first + work.prompts], sampling, use_tqdm=False)
        tokens = sum(len(each.token_ids) for answer in answers for each in answer.outputs)
        rates.append(tokens / (time.monotonic() - start))
    return {"tokens_per_second": statistics.median(rates[work.warmup :])}


def step_flops(work: Workload) -> float:
    """Return the approximate minimum FLOP of a training step with shared prompts.

    Counts layers at every position, the head at sampled tokens, and unmasked attention.
    """
    response = work.n * work.response_tokens
    layer = 4 * work.hidden**2 + 3 * work.hidden * work.intermediate
    linear = work.layers * layer * (work.prompt_tokens + response)
    head = work.hidden * work.vocabulary * response
    pairs = work.prompt_tokens * (work.prompt_tokens + 1) / 2
    pairs += work.n * work.response_tokens * (work.prompt_tokens + (work.response_tokens + 1) / 2)
    attention = work.layers * 2 * work.hidden * pairs
    return FLOPS * PASSES * work.prompts * (linear + head + attention)


def seconds_of(call: Callable[[], object], times: int) -> float:
    """Return the median duration of a call in seconds, after one warm-up series."""
    durations = []
    for _ in range(1 + REPEATS):
        start = time.monotonic()
        for _ in range(times):
            call()
        durations.append((time.monotonic() - start) / times)
    return statistics.median(durations[1:])


if __name__ == "__main__":
    main()
