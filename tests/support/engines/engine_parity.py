"""Logprob parity of a small model in the real engine, before and after a weight sync.

    PYTHONPATH=tests python -m support.engines.engine_parity qwen3_moe FOLDER

Prints the largest logprob difference from the plain transformers model before and after the sync.
Runs in a separate process, because vLLM can be started only once per process.
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

from raggrpo_api.spec.monitoring import LogLevel
from raggrpo_trainer.engines.engine_options import EngineOptions, engine_environment
from raggrpo_trainer.policy import small_model
from raggrpo_trainer.policy.lora import merged_parameters
from raggrpo_trainer.weights.export import checkpoint_tensors
from support.engines.model_families import config_of

TEMPERATURE = 0.8
SIZES = {"hidden_size": 128, "head_dim": 32}
"""Model sizes; `head_dim` is specified because vLLM's CPU kernels do not support 16."""


def options(model: Path) -> EngineOptions:
    return EngineOptions(
        model_path=str(model),
        device="cpu",
        precision="FP32",
        max_model_len=128,
        max_num_batched_tokens=256,
        max_num_seqs=8,
        gpu_memory_utilization=0.5,
        tensor_parallel_size=1,
        enable_prefix_caching=True,
        enable_chunked_prefill=False,
        enforce_eager=True,
        enable_sleep=False,
        kv_cache_tokens=2048,
    )


def gap(engine: Any, model: PreTrainedModel) -> float:
    """Return the largest logprob difference over two sampled completions."""
    from vllm import SamplingParams

    worst = 0.0
    for seed in range(2):
        ids = torch.randint(3, 120, (12,), generator=torch.Generator().manual_seed(seed)).tolist()
        sampling = SamplingParams(
            max_tokens=8,
            temperature=TEMPERATURE,
            logprobs=0,
            seed=seed,
            ignore_eos=True,
            detokenize=False,
        )
        [answer] = engine.generate([{"prompt_token_ids": ids}], sampling, use_tqdm=False)
        done = answer.outputs[0]
        row = torch.tensor([ids + list(done.token_ids)])
        with torch.no_grad():
            logits = model(input_ids=row, use_cache=False).logits[0, len(ids) - 1 : -1].float()
        expected = (logits / TEMPERATURE).log_softmax(-1)
        for place, token in enumerate(done.token_ids):
            actual = done.logprobs[place][token].logprob
            worst = max(worst, abs(float(expected[place, token]) - actual))
    return worst


def main(model_type: str, folder: Path) -> None:
    os.environ.update(engine_environment("cpu", 1, LogLevel.INFO))
    small_model._SIZES.update(SIZES)
    model = small_model.small_model(config_of(model_type))
    model.save_pretrained(folder)
    from vllm import LLM

    engine = LLM(**options(folder).arguments(), skip_tokenizer_init=True)
    before = gap(engine, model)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.02)
    weights = folder / "sent.safetensors"
    save_file(dict(checkpoint_tensors(model, merged_parameters(model, torch.float32))), weights)
    engine.collective_rpc("load_weights_file", args=(str(weights),))
    engine.reset_prefix_cache()
    print(before, gap(engine, model), flush=True)
    os._exit(0)  # skip the shutdown of vLLM threads


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
