"""One engine on the GPU without Ray: completions, weight updates by CUDA IPC, sleep and wake.

    PYTHONPATH=operator:trainer_image:tests python tests/gpu/job/engine_smoke.py \
        SIZE RESULT.json [--graphs] [--share 0.4]

Prints one line per check and writes the measured values. The engine runs random weights in BF16 and
must agree with the plain Hugging Face model that owns them.
"""

import argparse
import asyncio
import faulthandler
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.training.workload import SIZES, Workload, write_model

GIB = 2**30
PROMPT_TOKENS = 128
RESPONSE_TOKENS = 256
MAX_TOKENS = PROMPT_TOKENS + RESPONSE_TOKENS
BATCHED_TOKENS = 8192
SEQUENCES = 256
MAX_MISMATCH = 0.02
"""Maximum mean mismatch in BF16, in nats."""


class Result:
    """The measured values; every value is printed when it is known."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.values: dict[str, Any] = {}
        self.failed: list[str] = []

    def add(self, name: str, value: Any) -> None:
        """Record a value."""
        self.values[name] = float(f"{value:.4g}") if isinstance(value, float) else value
        print(f"{name:<42}{self.values[name]}", flush=True)
        self._file.write_text(json.dumps(self.values | {"failed": self.failed}))

    def check(self, name: str, holds: bool) -> None:
        """Record a condition that must hold."""
        if not holds:
            self.failed.append(name)
        self.add(name, holds)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Record the duration of a block in seconds."""
        start = time.monotonic()
        yield
        self.add(f"{name}, s", time.monotonic() - start)


class Smoke:
    """The checks of one engine; `model` owns the weights that the engine loads."""

    def __init__(self, engine: Any, model: Any, result: Result, *, on_gpu: bool) -> None:
        self.engine = engine
        self.model = model
        self.result = result
        self.on_gpu = on_gpu
        self.version = 0

    def requests(self, number: int, tokens: int) -> list[Any]:
        """Return requests with different prompts."""
        from raggrpo_trainer.engines.generation import GenerationRequest

        vocabulary = self.model.config.vocab_size
        return [
            GenerationRequest(
                tuple((7 * i + j) % (vocabulary - 3) + 3 for j in range(PROMPT_TOKENS)),
                tokens,
                1.0,
                i,
                ignore_eos=True,
            )
            for i in range(number)
        ]

    async def generate(self, number: int, tokens: int) -> tuple[list[Any], float]:
        """Return the completions and tokens/s."""
        start = time.monotonic()
        done = await asyncio.gather(*self.engine.start(self.requests(number, tokens)))
        return list(done), number * tokens / (time.monotonic() - start)

    async def update(self, folder: Path) -> None:
        """Load the model's current weights: from GPU memory, or from a file without a GPU."""
        import torch

        from raggrpo_trainer.weights.rank_side import IpcChunkSender

        self.version += 1
        start = time.monotonic()
        if not self.on_gpu:
            self.model.save_pretrained(folder)
            await self.engine.load_weights(str(folder / "model.safetensors"), self.version)
            return
        await self.engine.start_update({"packed": True} if self.version == 1 else None)
        sender = IpcChunkSender((n, p.detach()) for n, p in self.model.named_parameters())
        chunks = 0
        while (chunk := sender.next()) is not None:
            chunk["handles"] = [chunk.pop("handle")]
            await self.engine.load_chunk(chunk)
            chunks += 1
        await self.engine.finish_update(self.version)
        self.result.add(f"update {self.version} ({chunks} chunks), s", time.monotonic() - start)
        del sender
        torch.cuda.ipc_collect()

    def mismatch(self, completions: Sequence[Any]) -> tuple[float, float]:
        """Return mean and maximum difference to the model's logprobs, in nats."""
        import torch

        gaps: list[float] = []
        with torch.no_grad():
            for request, completion in zip(self.requests(8, 16), completions, strict=True):
                ids = [*request.prompt_ids, *completion.token_ids]
                logits = self.model(torch.tensor([ids], device=self.model.device)).logits[0]
                logprobs = logits[len(request.prompt_ids) - 1 : -1].float().log_softmax(-1).cpu()
                own = logprobs[range(16), list(completion.token_ids)]
                gaps += (own - torch.tensor(completion.logprobs)).abs().tolist()
        return statistics.fmean(gaps), max(gaps)

    async def run(self, folder: Path) -> None:
        """Run all checks."""
        import torch

        result = self.result
        await self.generate(8, 16)  # warm-up
        first, _ = await self.generate(8, 16)
        mean, worst = self.mismatch(first)
        result.add("mismatch of loaded weights, mean nats", mean)
        result.add("mismatch of loaded weights, max nats", worst)
        await self.update(folder)
        same, _ = await self.generate(8, 16)
        result.check(
            "same weights, same tokens", [c.token_ids for c in same] == [c.token_ids for c in first]
        )
        with torch.no_grad():
            for parameter in self.model.parameters():
                if parameter.ndim > 1:
                    parameter.mul_(1.02)
        await self.update(folder)
        other, _ = await self.generate(8, 16)
        changed = [c.logprobs for c in other] != [c.logprobs for c in same]
        result.check("changed weights, changed logprobs", changed)
        mean, worst = self.mismatch(other)
        result.add("mismatch, mean nats", mean)
        result.add("mismatch, max nats", worst)
        result.check("mismatch at most 0.02 nats", mean <= MAX_MISMATCH)
        if self.on_gpu:
            await self.sleep_and_wake(folder, other)
        await self.throughput()

    async def sleep_and_wake(self, folder: Path, before: Sequence[Any]) -> None:
        """Check that sleep frees memory and that the engine then serves as before."""
        import torch

        torch.cuda.empty_cache()
        total = torch.cuda.mem_get_info()[1] / GIB
        awake = torch.cuda.mem_get_info()[0] / GIB
        with self.result.timed("sleep"):
            await self.engine.sleep()
        freed = torch.cuda.mem_get_info()[0] / GIB - awake
        self.result.add("sleep frees, GiB", freed)
        self.result.add("engine still uses, GiB", total - awake - freed)
        with self.result.timed("wake"):
            await self.engine.wake()
        await self.update(folder)
        woken, _ = await self.generate(8, 16)
        mean, _ = self.mismatch(woken)
        self.result.add("mismatch after sleep, mean nats", mean)
        self.result.check("mismatch after sleep at most 0.02 nats", mean <= MAX_MISMATCH)
        same = [c.token_ids for c in woken] == [c.token_ids for c in before]
        self.result.add("after sleep same tokens", same)

    async def throughput(self) -> None:
        """Measure the better of two runs; `vllm_alone` measures the same requests."""
        if self.model.config.hidden_size < 512:
            return
        rates = [(await self.generate(SEQUENCES, RESPONSE_TOKENS))[1] for _ in range(2)]
        self.result.add("engine, tokens/s", max(rates))


def vllm_alone(options: Any, requests: Sequence[Any]) -> float:
    """Return tokens/s of `vllm.LLM.generate` with the same options and requests."""
    from vllm import LLM

    from raggrpo_trainer.engines.generation import sampling_params

    llm = LLM(**options.arguments())
    prompts: Any = [{"prompt_token_ids": list(r.prompt_ids)} for r in requests]
    rates = []
    for _ in range(3):
        start = time.monotonic()
        done = llm.generate(prompts, [sampling_params(r) for r in requests], use_tqdm=False)
        tokens = sum(len(each.outputs[0].token_ids) for each in done)
        rates.append(tokens / (time.monotonic() - start))
    return max(rates[1:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("result", type=Path)
    parser.add_argument("--graphs", action="store_true", help="CUDA graphs instead of eager mode")
    parser.add_argument("--share", type=float, default=0.4, help="the engine's share of the GPU")
    parser.add_argument("--alone", action="store_true", help="measure vllm.LLM instead")
    parser.add_argument("--cpu", action="store_true", help="test this script without a GPU")
    options = parser.parse_args()
    # The time limit of `gpu.job` ends this process with SIGTERM; its log then shows where.
    faulthandler.register(signal.SIGTERM, chain=True)
    import torch
    from transformers import AutoModelForCausalLM

    from raggrpo_api.spec.monitoring import LogLevel
    from raggrpo_trainer.engines.engine_options import EngineOptions, engine_environment
    from raggrpo_trainer.weights.backend import WeightTransferBackend

    device = "cpu" if options.cpu else "cuda"
    backend = WeightTransferBackend.SHARED_MEMORY if options.cpu else WeightTransferBackend.IPC
    os.environ.update(engine_environment(device, 2, LogLevel.INFO, backend))
    folder = options.result.parent.with_name(f"model-{options.size}")
    os.environ["VLLM_LOGGING_LEVEL"] = "INFO"
    lengths = {"prompt_tokens": PROMPT_TOKENS, "response_tokens": RESPONSE_TOKENS}
    work = Workload(**(SIZES[options.size] | lengths), device="CPU" if options.cpu else "GPU")
    result = Result(options.result)
    if not (folder / "config.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        with result.timed("write the model"):
            write_model(work, folder)
    engine_options = EngineOptions(
        model_path=str(folder),
        device=device,
        precision="FP32" if options.cpu else "BF16",
        max_model_len=MAX_TOKENS,
        max_num_batched_tokens=BATCHED_TOKENS,
        max_num_seqs=SEQUENCES,
        gpu_memory_utilization=options.share,
        tensor_parallel_size=1,
        enable_prefix_caching=True,
        enable_chunked_prefill=True,
        enforce_eager=not options.graphs,
        enable_sleep=True,
        weight_way=backend,
        kv_cache_tokens=BATCHED_TOKENS if options.cpu else 0,
    )
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32 if options.cpu else torch.bfloat16
    ).to(device)
    if options.alone:
        requests = Smoke(None, model, result, on_gpu=True).requests(SEQUENCES, RESPONSE_TOKENS)
        result.add("vLLM alone, tokens/s", vllm_alone(engine_options, requests))
        return 0
    asyncio.run(check(engine_options, model, result, folder, on_gpu=not options.cpu))
    print("FAILED: " + ", ".join(result.failed) if result.failed else "ok", flush=True)
    return 1 if result.failed else 0


async def check(options: Any, model: Any, result: Result, folder: Path, *, on_gpu: bool) -> None:
    from raggrpo_trainer.engines.async_engine import AsyncEngine
    from raggrpo_trainer.engines.in_process_engine import InProcessEngine

    with result.timed("start the engine"):
        engine: Any = AsyncEngine(options) if on_gpu else InProcessEngine(options)
    try:
        await Smoke(engine, model, result, on_gpu=on_gpu).run(folder.with_name("updated"))
    finally:
        if on_gpu:
            engine._engine.shutdown()


if __name__ == "__main__":
    sys.exit(main())
