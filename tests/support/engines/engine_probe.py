"""Measure a real vLLM engine against a transformers model, in a separate process.

Usage: engine_probe.py MODEL_FOLDER in-process|async|sharded  → one JSON line of measurements.
"""

import asyncio
import json
import os
import pickle
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import psutil

from raggrpo_api.spec.monitoring import LogLevel
from raggrpo_trainer.engines.async_engine import AsyncEngine
from raggrpo_trainer.engines.engine_failure import EngineDead, own_outputs
from raggrpo_trainer.engines.engine_options import EngineOptions, engine_environment
from raggrpo_trainer.engines.generation import Generation, GenerationRequest
from raggrpo_trainer.engines.in_process_engine import InProcessEngine
from raggrpo_trainer.weights.backend import WeightTransferBackend

PROMPTS = [tuple(range(3 + i, 90 + i)) for i in range(4)]
REQUESTS = [
    GenerationRequest(prompt, 16, 0.7, seed=10 * i + k)
    for i, prompt in enumerate(PROMPTS)
    for k in range(3)
]

FIRST_CHUNKED_UPDATE = 3
WRONG_CHUNKS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "name": lambda chunk: {"names": [f"other.{name}" for name in chunk["names"]]},
    "shape": lambda chunk: {"shapes": [shape[::-1] for shape in chunk["shapes"]]},
    "size": lambda chunk: {"shapes": [[2 * shape[0], shape[1]] for shape in chunk["shapes"]]},
    "number": lambda chunk: {"names": chunk["names"][1:]},
    "GPU": lambda _: {"handle": pickle.dumps({"GPU-1": (None,) * 7})},
}
"""What changes a valid chunk into one that vLLM must reject."""


async def measure(folder: str, kind: str) -> dict[str, object]:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    kind_of_options: type[EngineOptions] = EngineOptions
    if kind == "async":
        from support.engines.ipc_without_gpu import IpcOptions

        kind_of_options = IpcOptions
    options = kind_of_options(
        model_path=folder,
        device="cpu",
        precision="FP32",
        max_model_len=1024,
        max_num_batched_tokens=2048,
        max_num_seqs=32,
        gpu_memory_utilization=0.5,
        tensor_parallel_size=2 if kind == "sharded" else 1,
        enable_prefix_caching=True,
        enable_chunked_prefill=True,
        enforce_eager=True,
        enable_sleep=False,
    )
    engine = (InProcessEngine if kind == "in-process" else AsyncEngine)(options)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    async def run(requests: list[GenerationRequest] = REQUESTS) -> list[Generation]:
        return list(await asyncio.gather(*engine.start(requests)))

    @torch.no_grad()
    def gaps_of(generations: list[Generation]) -> list[torch.Tensor]:
        """Return the absolute logprob differences per token from the current model."""
        gaps = []
        for request, generation in zip(REQUESTS, generations, strict=True):
            ids = torch.tensor([[*request.prompt_ids, *generation.token_ids]])
            logits = model(ids).logits[0, len(request.prompt_ids) - 1 : -1] / request.temperature
            ours = logits.log_softmax(-1).gather(1, torch.tensor(generation.token_ids)[:, None])
            gaps.append((ours[:, 0] - torch.tensor(generation.logprobs)).abs())
        return gaps

    def gap(generations: list[Generation]) -> float:
        return max(each.max().item() for each in gaps_of(generations))

    result: dict[str, object] = {}
    first = await run()
    result["gap_before"] = gap(first)
    result["repeatable"] = await run() == first
    result["order_free"] = (await run(REQUESTS[::-1]))[::-1] == first
    gaps = []
    path = f"/dev/shm/raggrpo-probe-{os.getpid()}.safetensors"

    def change(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
        save_file({n: p.detach().clone() for n, p in model.named_parameters()}, path)

    for update in (1, 2):
        change(update)
        await engine.load_weights(path, update)
        after = await run()
        gaps.append(gap(after))
        result["version"] = after[0].policy_version
    if isinstance(engine, AsyncEngine) and kind == "async":
        for update in (3, 4):
            change(update)
            parameters = dict(model.named_parameters())
            result[f"transfer_{update}"] = await load_in_chunks(engine, parameters, update)
            after_chunks = await run()
            gaps.append(gap(after_chunks))
            result["version_after_chunks"] = after_chunks[0].policy_version
        change(2)
        await engine.load_weights(path, 2)
        after = await run()
    result["gaps_after"] = gaps
    result["changed"] = [g.token_ids for g in after] != [g.token_ids for g in first]
    stopped = await run([replace(REQUESTS[0], stop_token_ids=(after[0].token_ids[2],))])
    result["stop_reason"] = stopped[0].finish_reason
    result["stop_length"] = len(stopped[0].token_ids)
    first_tokens = after[0].token_ids[:3]
    text = AutoTokenizer.from_pretrained(folder).decode(first_tokens)
    [halted] = await run([replace(REQUESTS[0], stop=(text[:-1],))])
    result["halted"] = halted.finish_reason
    result["keeps_the_whole_token"] = halted.token_ids == first_tokens
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    change(3)
    short, *running = engine.start(
        [replace(REQUESTS[0], ignore_eos=True)]
        + [replace(request, max_tokens=640, ignore_eos=True) for request in REQUESTS]
    )
    await short  # by then, the other requests have the same length and are still running
    await engine.load_weights(path, 3)
    across = list(await asyncio.gather(*running))
    new = gaps_of(across)
    model.load_state_dict(weights)
    old = gaps_of(across)
    result["gap_across"] = max(
        torch.minimum(a, b).max().item() for a, b in zip(old, new, strict=True)
    )
    result["of_both"] = [sum(int((g <= 1e-4).sum()) for g in gaps) for gaps in (old, new)]
    os.unlink(path)
    try:
        await engine.load_weights("/nonexistent.safetensors", 3)
        result["bad_update"] = "accepted"
    except Exception as error:
        result["bad_update"] = type(error).__name__
    result["alive_after_bad_update"] = len(await asyncio.wait_for(run(), 60)) == len(after)
    if kind == "async" and isinstance(engine, AsyncEngine):
        result["rejected_chunks"] = await rejected_chunks(engine, dict(model.named_parameters()))
        engine._outputs = own_outputs()  # after the errors of the rejected chunks
    result["dead"] = await errors_when_dead(engine)
    if isinstance(engine, AsyncEngine):
        engine._engine.shutdown()  # otherwise its child processes would outlive this process
    return result


async def load_in_chunks(
    engine: AsyncEngine, weights: dict[str, Any], version: int
) -> dict[str, Any]:
    """Load tensor chunks as on GPUs; only the handles of the shared buffer are replaced."""
    from raggrpo_trainer.weights.rank_side import IpcChunkSender
    from support.engines.ipc_without_gpu import digest, exported_buffers

    with exported_buffers() as buffers:
        sender = IpcChunkSender(((n, p.detach()) for n, p in weights.items()), size=100_000)
        is_connected = version > FIRST_CHUNKED_UPDATE
        await engine.start_update(None if is_connected else {"packed": True})
        num_chunks = 0
        while (chunk := sender.next()) is not None:
            await engine.load_chunk(with_handles(chunk))
            num_chunks += 1
        [during] = await engine._engine.collective_rpc("mapped_buffers")
        await engine.finish_update(version)
        [after] = await engine._engine.collective_rpc("mapped_buffers")
        [received] = await engine._engine.collective_rpc("received_tensors")
    return {
        "bitwise": received == {name: digest(tensor) for name, tensor in weights.items()},
        "chunks": num_chunks,
        "exported": len(buffers),
        "mapped": [during, after],
    }


async def rejected_chunks(engine: AsyncEngine, weights: dict[str, Any]) -> dict[str, str]:
    """Return the error of a chunk with a wrong name, shape, number of tensors and GPU."""
    from raggrpo_trainer.weights.rank_side import IpcChunkSender
    from support.engines.ipc_without_gpu import exported_buffers

    errors = {}
    with exported_buffers():
        for name, change in WRONG_CHUNKS.items():
            named = [(n, p.detach()) for n, p in weights.items() if "mlp.down_proj" in n]
            chunk = IpcChunkSender(named).next()
            assert chunk is not None
            await engine.start_update(None)
            try:
                await engine.load_chunk(with_handles(chunk | change(chunk)))
                errors[name] = "accepted"
            except Exception as error:
                errors[name] = f"{type(error).__name__}: {error}"
    return errors


def with_handles(chunk: dict[str, Any]) -> dict[str, Any]:
    """Return the chunk with the handles of all ranks, as the driver does with one rank."""
    handle = chunk["handle"]
    return {n: v for n, v in chunk.items() if n != "handle"} | {"handles": [handle]}


async def errors_when_dead(engine: InProcessEngine | AsyncEngine) -> list[str]:
    """Kill the engine core during requests; return their errors and that of a later call."""

    async def error_of(work: Awaitable[Any]) -> str:
        try:
            await asyncio.wait_for(work, 60)
        except EngineDead as dead:
            return dead.reason
        except TimeoutError:
            return "nothing: it hangs"
        return "nothing"

    if isinstance(engine, AsyncEngine):
        for core in psutil.Process().children(recursive=True):
            core.kill()
    else:

        def step() -> Any:
            raise RuntimeError("std::bad_alloc")

        engine._core.step = step
    request = replace(REQUESTS[0], max_tokens=100, ignore_eos=True)
    return [await error_of(engine.start([request])[0]), await error_of(engine.abort_all())]


if __name__ == "__main__":
    backend = WeightTransferBackend.IPC
    os.environ.update(engine_environment("cpu", 1, LogLevel.INFO, backend))
    if sys.argv[2] != "in-process":
        # Only the in-process engine shares this process with its core.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
    print(json.dumps(asyncio.run(measure(sys.argv[1], sys.argv[2]))), flush=True)
    os._exit(0)
