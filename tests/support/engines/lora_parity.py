"""Logprobs of a policy with adapters and of the real engine, at the start and after each sync.

    PYTHONPATH=tests python -m support.engines.lora_parity FOLDER [FP32|BF16] [full|merged|adapter]

Prints one JSON object per sync: `mean` and `max` difference from the policy, and `change`, the mean
change of the engine's logprobs of the same tokens since the sync before. `full` trains all
parameters; with `adapter`, the engine computes with the exported adapter instead of merged weights.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from raggrpo_api.spec.lora import LoraSpec
from raggrpo_api.spec.monitoring import LogLevel
from raggrpo_api.spec.training import Precision
from raggrpo_trainer.engines.engine_options import engine_environment
from raggrpo_trainer.exchange.groups import Completion, Group
from raggrpo_trainer.policy import small_model
from raggrpo_trainer.policy.policy import Policy
from support.builders.trainer.policies import make_policy_config
from support.engines.engine_parity import SIZES, options
from support.engines.model_families import config_of

SYNCS = 3
LORA = LoraSpec(rank=8, alpha=24.0)
TEMPERATURE = 1.0
"""vLLM does not scale the logprobs of prompts."""
ADVANTAGES = (1.0, -1.0, 0.5, -0.5)


def engine_logprobs(engine: Any, groups: list[Group], request: Any = None) -> torch.Tensor:
    """Return the engine's logprobs of the sampled tokens."""
    from vllm import SamplingParams

    sampling = SamplingParams(
        max_tokens=1, temperature=TEMPERATURE, prompt_logprobs=0, detokenize=False
    )
    values = []
    for group in groups:
        for each in group.completions:
            prompt = {"prompt_token_ids": [*group.prompt_ids, *each.token_ids]}
            [answer] = engine.generate([prompt], sampling, use_tqdm=False, lora_request=request)
            places = answer.prompt_logprobs[len(group.prompt_ids) :]
            values += [p[t].logprob for p, t in zip(places, each.token_ids, strict=True)]
    return torch.tensor(values)


def sampled_groups(engine: Any) -> list[Group]:
    """Return groups with completions of the engine."""
    from vllm import SamplingParams

    groups = []
    for seed in range(4):
        ids = torch.randint(3, 120, (12,), generator=torch.Generator().manual_seed(seed)).tolist()
        sampling = SamplingParams(
            n=len(ADVANTAGES),
            max_tokens=16,
            temperature=TEMPERATURE,
            logprobs=0,
            seed=seed,
            ignore_eos=True,
            detokenize=False,
        )
        [answer] = engine.generate([{"prompt_token_ids": ids}], sampling, use_tqdm=False)
        completions = tuple(
            Completion(
                tuple(done.token_ids),
                (True,) * len(done.token_ids),
                tuple(
                    place[token].logprob
                    for place, token in zip(done.logprobs, done.token_ids, strict=True)
                ),
            )
            for done in answer.outputs
        )
        groups.append(Group(tuple(ids), completions, ADVANTAGES))
    return groups


def sync(engine: Any, policy: Policy, folder: Path) -> None:
    save_file(dict(policy.export_weights()), folder / "sent.safetensors")
    engine.collective_rpc("load_weights_file", args=(str(folder / "sent.safetensors"),))
    engine.reset_prefix_cache()


def measure(folder: Path, precision: str, mode: str) -> list[dict[str, float]]:
    """Run this module; return its results before training and after each sync."""
    command = [sys.executable, "-m", __name__, str(folder), precision, mode]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.run(
        command, capture_output=True, text=True, env=env, timeout=500, check=False
    )
    assert child.returncode == 0, child.stderr[-2000:]
    return [json.loads(line) for line in child.stdout.splitlines()[-(SYNCS + 1) :]]


def main(folder: Path, precision: str, mode: str) -> None:
    os.environ.update(engine_environment("cpu", 1, LogLevel.INFO))
    torch.set_num_threads(1)
    small_model._SIZES.update(SIZES)
    model = folder / "model"
    small_model.small_model(config_of("qwen2")).save_pretrained(model)
    from vllm import LLM
    from vllm.lora.request import LoRARequest

    arguments = options(model).arguments() | {
        "dtype": {"FP32": "float32", "BF16": "bfloat16"}[precision]
    }
    if mode == "adapter":
        arguments |= {"enable_lora": True, "max_lora_rank": LORA.rank}
    engine = LLM(**arguments, skip_tokenizer_init=True)
    # vLLM has created a process group of one rank.
    config = make_policy_config(
        model,
        lora=None if mode == "full" else LORA,
        precision=Precision(precision),
        learning_rate=2e-3 if mode == "full" else 1e-2,
    )
    policy = Policy(replace(config, temperature=TEMPERATURE), rank=0, world_size=1)
    first = sampled_groups(engine)
    before = None
    for number in range(SYNCS + 1):
        request = None
        if number:
            policy.step(first, step=number + 1)
            if mode == "adapter":
                policy.export_hf(folder / f"export-{number}")
                request = LoRARequest(
                    f"a{number}", number, str(folder / f"export-{number}" / "adapter")
                )
            else:
                sync(engine, policy, folder)
        scores = engine_logprobs(engine, first, request)
        expected = torch.tensor([v for each in policy.logprobs(first) for v in each])
        gaps = (scores - expected).abs()
        change = 0.0 if before is None else float((scores - before).abs().mean())
        result = {"mean": float(gaps.mean()), "max": float(gaps.max()), "change": change}
        before = scores
        print(json.dumps(result), flush=True)
    os._exit(0)  # skip the shutdown of vLLM threads


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
