"""`AsyncEngine`: vLLM's AsyncLLM, for GPUs."""

import asyncio
import os
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from raggrpo_trainer.host.large_import import large_import
from raggrpo_trainer.weights.receiver import VllmReceiver

from .engine_failure import as_engine_dead, own_outputs
from .engine_options import EngineOptions
from .generation import (
    Generation,
    GenerationRequest,
    as_invalid_request,
    sampling_params,
    to_generation,
)


class AsyncEngine:
    """An `Engine` whose core and tensor-parallel workers are separate processes."""

    def __init__(self, options: EngineOptions) -> None:
        with large_import():
            from vllm import AsyncEngineArgs
            from vllm.v1.engine.async_llm import AsyncLLM
            from vllm.v1.engine.exceptions import EngineDeadError

        self._outputs = own_outputs()
        self._dead_error = EngineDeadError
        self._engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**options.arguments()))
        self._receiver = VllmReceiver(self._engine)
        self._can_sleep = options.enable_sleep and options.device != "cpu"
        self._num_requests = 0
        self._running: set[str] = set()

    def start(self, requests: Sequence[GenerationRequest]) -> list[Awaitable[Generation]]:
        """Queue requests in this order; each awaitable returns one completion."""
        return [asyncio.ensure_future(self._generate(request)) for request in requests]

    async def _generate(self, request: GenerationRequest) -> Generation:
        self._num_requests += 1
        name = f"{os.getpid()}-{self._num_requests}"
        prompt = {"prompt_token_ids": list(request.prompt_ids)}
        self._running.add(name)
        try:
            with self._translate_death(), as_invalid_request():
                async for output in self._engine.generate(prompt, sampling_params(request), name):
                    last = output
        finally:
            self._running.discard(name)
        return to_generation(last, self._receiver.version)

    async def load_weights(self, path: str, version: int) -> None:
        """Load a safetensors file and clear the prefix cache."""
        with self._translate_death():
            await self._receiver.load_file(path, version)

    async def start_update(self, init_info: Mapping[str, Any] | None) -> None:
        """Pause generation and prepare for tensor chunks."""
        with self._translate_death():
            await self._receiver.start_update(init_info)

    async def load_chunk(self, chunk: Mapping[str, Any]) -> None:
        """Load one tensor chunk."""
        with self._translate_death():
            await self._receiver.load_chunk(chunk)

    async def finish_update(self, version: int) -> None:
        """Apply the loaded chunks, clear the prefix cache and resume generation."""
        with self._translate_death():
            await self._receiver.finish_update(version)

    async def abort_all(self) -> None:
        """Abort all running requests. Raises EngineDead if the engine is dead."""
        with self._translate_death():
            await self._engine.check_health()
            if self._running:
                await self._engine.abort(list(self._running))

    async def sleep(self) -> None:
        """Free the GPU memory of weights and KV cache."""
        if self._can_sleep:
            with self._translate_death():
                await self._engine.sleep(level=2)

    async def wake(self) -> None:
        """Reallocate the GPU memory freed by `sleep`; load weights before the next request."""
        if self._can_sleep:
            with self._translate_death():
                await self._engine.wake_up()

    def _translate_death(self) -> AbstractContextManager[None]:
        """Translate a dead core's error to EngineDead with the reason from the core's output."""
        return as_engine_dead(self._outputs, self._dead_error)
