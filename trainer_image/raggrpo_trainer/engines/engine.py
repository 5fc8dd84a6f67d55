"""vLLM behind one interface: `InProcessEngine` (CPU) and `AsyncEngine` (GPU). Knows no Ray.

A result depends only on prompt, weights and the caller's seed. `load_weights` may be called while
requests run: tokens already sampled keep the log-probabilities of the policy that sampled them.
"""

import asyncio
import base64
import logging
import os
import pickle
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from raggrpo_api.memory.arithmetic import cpu_kv_cache, kv_bytes_per_token
from raggrpo_api.spec.monitoring import LogLevel
from raggrpo_api.spec.training import Precision
from raggrpo_trainer.host.large_import import large_import
from raggrpo_trainer.host.logs import engine_variables
from raggrpo_trainer.weights.transfer import WeightWay

from .engine_failure import EngineDead, dead_on, own_outputs, reason_of

log = logging.getLogger(__name__)
WORKER_EXTENSION = "raggrpo_trainer.weights.vllm_extension.WorkerExtension"
CPU_BLOCK_SIZE = 32
"""Tokens per cache block; vLLM's CPU default of 128 would never share a short prompt."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What an engine is built with; a running engine with equal options can be reused."""

    model_path: str
    device: str
    precision: str
    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int
    gpu_memory_utilization: float
    tensor_parallel_size: int
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
    enforce_eager: bool
    enable_sleep: bool
    weight_way: WeightWay = WeightWay.SHARED_MEMORY
    kv_cache_tokens: int = 0
    """Size of the KV cache on CPU; on GPU it follows from gpu_memory_utilization."""

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of vLLM's engines."""
        on_cpu = self.device == "cpu"
        common = {
            "model": self.model_path,
            "dtype": {"FP32": "float32", "BF16": "bfloat16", "FP16": "float16"}[self.precision],
            "max_model_len": self.max_model_len,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "max_num_seqs": self.max_num_seqs,
            "tensor_parallel_size": self.tensor_parallel_size,
            "enable_prefix_caching": self.enable_prefix_caching,
            "worker_extension_cls": WORKER_EXTENSION,
            # By default vLLM reports log-probabilities before temperature is applied.
            "logprobs_mode": "processed_logprobs",
            "disable_log_stats": True,
            "seed": 0,
        }
        if on_cpu:
            # Chunked prefill rewinds a seeded request's generator, which torch's CPU generator
            # cannot do.
            return common | {
                "enforce_eager": True,
                "block_size": CPU_BLOCK_SIZE,
                "kv_cache_memory_bytes": self._kv_cache_bytes(),
                "enable_chunked_prefill": False,
            }
        if self.weight_way is not WeightWay.SHARED_MEMORY:
            from vllm.config.weight_transfer import WeightTransferConfig

            backend = self.weight_way.value.lower()
            common["weight_transfer_config"] = WeightTransferConfig(backend=backend)
        return common | {
            "enforce_eager": self.enforce_eager,
            "gpu_memory_utilization": self.gpu_memory_utilization,
            "enable_chunked_prefill": self.enable_chunked_prefill,
            "enable_sleep_mode": self.enable_sleep,
        }

    def _kv_cache_bytes(self) -> int:
        from transformers import AutoConfig  # slow to import; an engine's process needs it anyway

        model = AutoConfig.from_pretrained(self.model_path)
        head = getattr(model, "head_dim", None) or model.hidden_size // model.num_attention_heads
        kv_heads = getattr(model, "num_key_value_heads", None) or model.num_attention_heads
        precision = Precision(self.precision)
        per_token = kv_bytes_per_token(model.num_hidden_layers, kv_heads, head, precision)
        return cpu_kv_cache(self.kv_cache_tokens, per_token)


def environment(
    device: str, threads: int, level: LogLevel, way: WeightWay = WeightWay.SHARED_MEMORY
) -> dict[str, str]:
    """Return the variables an engine's process must start with."""
    common = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"} | engine_variables(level)
    if way is WeightWay.IPC:
        # vLLM's workers read handles of GPU memory, which are pickled, only if this allows it.
        common["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
    if device != "cpu":
        return common
    return common | {
        # One process instead of four, 0.7 GiB instead of 3.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(threads),
        # Even in eager mode vLLM compiles a sampling function, which takes 4–16 s and g++.
        "TORCHDYNAMO_DISABLE": "1",
    }


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One completion to sample."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    temperature: float
    seed: int
    top_p: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    """Strings that end the completion and are kept in it (search turns)."""
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class Generation:
    """One sampled completion."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Of the sampled tokens under the sampling distribution (temperature applied)."""
    finish_reason: str
    """stop, length or abort."""
    policy_version: int


def with_handles(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return a part as vLLM's workers read it: the handles of all ranks' GPUs as one pickled table.

    Raises ValueError if two ranks have the same GPU: one of them would keep its memory forever.
    """
    told = {name: value for name, value in part.items() if name != "handles"}
    if "handles" not in part:
        return told
    handles: dict[str, Any] = {}
    for each in part["handles"]:
        handles |= pickle.loads(each)
    if len(handles) != len(part["handles"]):
        raise ValueError(f"{len(part['handles'])} ranks are on {len(handles)} GPUs")
    return told | {"ipc_handles_pickled": base64.b64encode(pickle.dumps(handles)).decode()}


class Engine(Protocol):
    """What the rollout actor needs from an engine."""

    def start(self, requests: Sequence[GenerationRequest]) -> list[Awaitable[Generation]]:
        """Queue requests together, in this order; each awaitable yields one completion."""
        ...

    async def load_weights(self, path: str, version: int) -> None:
        """Load a safetensors file and forget cached prefixes."""
        ...

    async def begin_update(self, way: Mapping[str, Any] | None) -> None:
        """Stop generating and expect weights in parts; `way`: vLLM's init information, if new."""
        ...

    async def read_part(self, part: Mapping[str, Any]) -> None:
        """Read one part, described as vLLM's update information."""
        ...

    async def finish_update(self, version: int) -> None:
        """Use the weights that were read, forget cached prefixes, go on generating."""
        ...

    async def abort_all(self) -> None:
        """End every running request."""
        ...

    async def sleep(self) -> None:
        """Free GPU memory while the ranks train (colocated)."""
        ...

    async def wake(self) -> None:
        """Reclaim it."""
        ...


def sampling_params(request: GenerationRequest) -> Any:
    """Return vLLM's SamplingParams for a request."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        seed=request.seed,
        logprobs=0,
        stop_token_ids=list(request.stop_token_ids) or None,
        ignore_eos=request.ignore_eos,
        stop=list(request.stop) or None,
        include_stop_str_in_output=bool(request.stop),
        detokenize=bool(request.stop),
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def to_generation(output: Any, version: int) -> Generation:
    """Convert one finished vLLM output."""
    completion = output.outputs[0]
    ids = tuple(completion.token_ids)
    logprobs = tuple(
        step[token].logprob for step, token in zip(completion.logprobs, ids, strict=True)
    )
    return Generation(ids, logprobs, completion.finish_reason or "abort", version)


def _import_model(folder: str) -> None:
    """Import the model's class, which vLLM would inspect in one more process that imports vLLM."""
    from transformers import AutoConfig
    from vllm import ModelRegistry

    for architecture in AutoConfig.from_pretrained(folder).architectures or ():
        if known := ModelRegistry.models.get(architecture):
            ModelRegistry.register_model(architecture, known.load_model_cls())


class InProcessEngine:
    """vLLM's engine core stepped by one thread of this process: small and quick to start."""

    def __init__(self, options: EngineOptions) -> None:
        with large_import():
            from vllm import LLM

            _import_model(options.model_path)
        self._llm = LLM(**options.arguments())
        self._core = self._llm.llm_engine
        self._version = 0
        self._number = 0
        self._commands: deque[Callable[[], None]] = deque()
        self._waiting: dict[str, Future[Generation]] = {}
        self._wakeup = threading.Condition()
        self._dead: EngineDead | None = None
        threading.Thread(target=self._run, name="engine", daemon=True).start()

    def start(self, requests: Sequence[GenerationRequest]) -> list[Awaitable[Generation]]:
        """Queue requests that all enter the same engine step, in this order."""
        futures: list[Future[Generation]] = [Future() for _ in requests]

        def add() -> None:
            for request, future in zip(requests, futures, strict=True):
                self._add(request, future)

        self._command(add)
        return [asyncio.wrap_future(future) for future in futures]

    async def load_weights(self, path: str, version: int) -> None:
        """Load weights between two engine steps."""

        def load() -> None:
            self._llm.collective_rpc("load_weights_file", args=(path,))
            self._llm.reset_prefix_cache(reset_running_requests=True)
            self._version = version

        await self._call(load)

    async def begin_update(self, way: Mapping[str, Any] | None) -> None:
        """Refuse: parts are for GPUs."""
        raise NotImplementedError("on a CPU weights come through shared memory")

    async def read_part(self, part: Mapping[str, Any]) -> None:
        """Refuse."""
        raise NotImplementedError("on a CPU weights come through shared memory")

    async def finish_update(self, version: int) -> None:
        """Refuse."""
        raise NotImplementedError("on a CPU weights come through shared memory")

    async def abort_all(self) -> None:
        """End every running request."""

        def abort() -> None:
            self._core.abort_request(list(self._waiting))
            for future in self._waiting.values():
                future.cancel()
            self._waiting.clear()

        await self._call(abort)

    async def sleep(self) -> None:
        """Do nothing: there is no GPU memory to free."""

    async def wake(self) -> None:
        """Do nothing."""

    def _add(self, request: GenerationRequest, future: "Future[Generation]") -> None:
        self._number += 1
        name = str(self._number)
        self._waiting[name] = future
        try:
            prompt = {"prompt_token_ids": list(request.prompt_ids)}
            self._core.add_request(name, prompt, sampling_params(request))
        except Exception as error:  # vLLM rejects only this request
            del self._waiting[name]
            future.set_exception(error)

    def _command(self, command: Callable[[], None]) -> None:
        with self._wakeup:
            self._commands.append(command)
            self._wakeup.notify()

    async def _call(self, function: Callable[[], None]) -> None:
        done: Future[None] = Future()

        def run() -> None:
            try:
                if self._dead is not None:
                    raise self._dead
                function()
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        self._command(run)
        await asyncio.wrap_future(done)

    def _end_waiting(self, error: Exception) -> None:
        for future in self._waiting.values():
            future.set_exception(error)
        self._waiting.clear()

    def _run(self) -> None:
        """Step the engine while there is work; commands run between steps."""
        while True:
            with self._wakeup:
                while not self._commands and not self._waiting:
                    self._wakeup.wait()
                commands = list(self._commands)
                self._commands.clear()
            for command in commands:
                command()
            if self._dead is not None:
                self._end_waiting(self._dead)
                continue
            if not self._waiting:
                continue
            try:
                outputs = self._core.step()
            except Exception as error:
                # An engine that failed once is not trusted again. The thread goes on, to say so.
                log.exception("the engine failed")
                self._dead = EngineDead(reason_of(error, []))
                self._end_waiting(self._dead)
                continue
            for output in outputs:
                if output.finished and output.request_id in self._waiting:
                    future = self._waiting.pop(output.request_id)
                    future.set_result(to_generation(output, self._version))


class AsyncEngine:
    """vLLM's AsyncLLM for GPUs, with tensor-parallel workers in separate processes."""

    def __init__(self, options: EngineOptions) -> None:
        with large_import():
            from vllm import AsyncEngineArgs
            from vllm.v1.engine.async_llm import AsyncLLM
            from vllm.v1.engine.exceptions import EngineDeadError

        self._outputs, self._dead_error = own_outputs(), EngineDeadError
        self._engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**options.arguments()))
        self._can_sleep = options.enable_sleep and options.device != "cpu"
        self._number = 0
        self._version = 0
        self._running: set[str] = set()

    def start(self, requests: Sequence[GenerationRequest]) -> list[Awaitable[Generation]]:
        """Queue requests in this order."""
        return [asyncio.ensure_future(self._generate(request)) for request in requests]

    async def _generate(self, request: GenerationRequest) -> Generation:
        self._number += 1
        name = f"{os.getpid()}-{self._number}"
        prompt = {"prompt_token_ids": list(request.prompt_ids)}
        self._running.add(name)
        try:
            with self._told():
                async for output in self._engine.generate(prompt, sampling_params(request), name):
                    last = output
        finally:
            self._running.discard(name)
        return to_generation(last, self._version)

    async def load_weights(self, path: str, version: int) -> None:
        """Pause, load, forget cached prefixes, resume."""
        with self._told():
            await self._engine.pause_generation(mode="keep", clear_cache=True)
            try:
                await self._engine.collective_rpc("load_weights_file", args=(path,))
                await self._engine.reset_prefix_cache(reset_running_requests=True)
                self._version = version
            finally:
                # Left paused after a failed load, the engine would hang forever.
                await self._engine.resume_generation()

    async def begin_update(self, way: Mapping[str, Any] | None) -> None:
        """Pause; a failure leaves it so, for the engine is not used again."""
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        with self._told():
            await self._engine.pause_generation(mode="keep", clear_cache=True)
            if way is not None:
                await self._engine.shutdown_weight_transfer_engine()  # of an earlier driver
                request = WeightTransferInitRequest(dict(way))
                await self._engine.init_weight_transfer_engine(request)
            await self._engine.start_weight_update()

    async def read_part(self, part: Mapping[str, Any]) -> None:
        """Have the workers read one part."""
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        with self._told():
            request = WeightTransferUpdateRequest(with_handles(part))
            await self._engine.update_weights(request)

    async def finish_update(self, version: int) -> None:
        """Put what was read into use and resume."""
        with self._told():
            await self._engine.finish_weight_update()
            await self._engine.reset_prefix_cache(reset_running_requests=True)
            self._version = version
            await self._engine.resume_generation()

    async def abort_all(self) -> None:
        """End every running request; raises EngineDead if there is no engine to do so."""
        with self._told():
            await self._engine.check_health()
            if self._running:
                await self._engine.abort(list(self._running))

    async def sleep(self) -> None:
        """Free weights and cache on the GPU."""
        if self._can_sleep:
            with self._told():
                await self._engine.sleep(level=2)

    async def wake(self) -> None:
        """Reclaim memory; weights must be loaded before the next request."""
        if self._can_sleep:
            with self._told():
                await self._engine.wake_up()

    def _told(self) -> AbstractContextManager[None]:
        """Translate the death of the engine core, whose reason only its output has."""
        return dead_on(self._outputs, self._dead_error)
