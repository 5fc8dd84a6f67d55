"""`InProcessEngine`: vLLM's engine core in this process, for CPUs."""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from raggrpo_trainer.host.large_import import large_import

from .engine_failure import EngineDead, failure_reason
from .engine_options import EngineOptions
from .generation import (
    Generation,
    GenerationRequest,
    as_invalid_request,
    sampling_params,
    to_generation,
)

log = logging.getLogger(__name__)


class InProcessEngine:
    """An `Engine` whose core runs in a thread of this process: uses little memory, starts fast."""

    def __init__(self, options: EngineOptions) -> None:
        with large_import():
            from vllm import LLM

            _register_model(options.model_path)
        self._llm = LLM(**options.arguments())
        self._core = self._llm.llm_engine
        self._version = 0
        self._num_requests = 0
        self._commands: deque[Callable[[], None]] = deque()
        self._running: dict[str, Future[Generation]] = {}
        self._wakeup = threading.Condition()
        self._dead: EngineDead | None = None
        threading.Thread(target=self._run, name="engine", daemon=True).start()

    def start(self, requests: Sequence[GenerationRequest]) -> list[Awaitable[Generation]]:
        """Queue requests that all enter the same engine step, in this order."""
        futures: list[Future[Generation]] = [Future() for _ in requests]

        def add_all() -> None:
            for request, future in zip(requests, futures, strict=True):
                self._add(request, future)

        self._queue(add_all)
        return [asyncio.wrap_future(future) for future in futures]

    async def load_weights(self, path: str, version: int) -> None:
        """Load weights between two engine steps."""

        def load() -> None:
            self._llm.collective_rpc("load_weights_file", args=(path,))
            self._llm.reset_prefix_cache(reset_running_requests=True)
            self._version = version

        await self._call(load)

    async def start_update(self, init_info: Mapping[str, Any] | None) -> None:
        """Raise NotImplementedError: tensor chunks are transferred between GPUs only."""
        raise NotImplementedError(
            "on CPUs, weights are transferred through shared memory, not as chunks"
        )

    async def load_chunk(self, chunk: Mapping[str, Any]) -> None:
        """Raise NotImplementedError, like `start_update`."""
        raise NotImplementedError("on CPU weights are transferred through shared memory")

    async def finish_update(self, version: int) -> None:
        """Raise NotImplementedError, like `start_update`."""
        raise NotImplementedError("on CPU weights are transferred through shared memory")

    async def abort_all(self) -> None:
        """Abort all running requests."""

        def abort() -> None:
            self._core.abort_request(list(self._running))
            for future in self._running.values():
                future.cancel()
            self._running.clear()

        await self._call(abort)

    async def sleep(self) -> None:
        """Do nothing: there is no GPU memory to free."""

    async def wake(self) -> None:
        """Do nothing: `sleep` frees no memory."""

    def _add(self, request: GenerationRequest, future: "Future[Generation]") -> None:
        self._num_requests += 1
        name = str(self._num_requests)
        self._running[name] = future
        try:
            prompt = {"prompt_token_ids": list(request.prompt_ids)}
            with as_invalid_request():
                self._core.add_request(name, prompt, sampling_params(request))
        except Exception as error:  # the request is invalid; the engine still works
            del self._running[name]
            future.set_exception(error)

    def _queue(self, command: Callable[[], None]) -> None:
        with self._wakeup:
            self._commands.append(command)
            self._wakeup.notify()

    async def _call(self, function: Callable[[], None]) -> None:
        """Run a function in the engine's thread, between two steps, and wait for it."""
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

        self._queue(run)
        await asyncio.wrap_future(done)

    def _run(self) -> None:
        """Step the engine while it has requests; run commands between steps."""
        while True:
            for command in self._wait_for_work():
                command()
            if self._dead is not None:
                self._fail_running(self._dead)
            elif self._running:
                self._step()

    def _wait_for_work(self) -> list[Callable[[], None]]:
        """Wait until there are commands or running requests; return the commands."""
        with self._wakeup:
            while not self._commands and not self._running:
                self._wakeup.wait()
            commands = list(self._commands)
            self._commands.clear()
        return commands

    def _step(self) -> None:
        try:
            outputs = self._core.step()
        except Exception as error:
            # A failed engine is not used again, but its thread continues and rejects later calls.
            log.exception("an engine step failed; this engine rejects all further calls")
            self._dead = EngineDead(failure_reason(error, []))
            self._fail_running(self._dead)
            return
        for output in outputs:
            if output.finished and output.request_id in self._running:
                future = self._running.pop(output.request_id)
                future.set_result(to_generation(output, self._version))

    def _fail_running(self, error: Exception) -> None:
        for future in self._running.values():
            future.set_exception(error)
        self._running.clear()


def _register_model(folder: str) -> None:
    """Register the model's class, which vLLM would otherwise inspect in a separate process."""
    from transformers import AutoConfig
    from vllm import ModelRegistry

    for architecture in (
        AutoConfig.from_pretrained(folder, trust_remote_code=False).architectures or ()
    ):
        if model := ModelRegistry.models.get(architecture):
            ModelRegistry.register_model(architecture, model.load_model_cls())
