"""Errors by which vLLM rejects a request."""

import pickle
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.exceptions import VLLMValidationError
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from raggrpo_trainer.engines.async_engine import AsyncEngine
from raggrpo_trainer.engines.engine_actor import RolloutActor
from raggrpo_trainer.engines.generation import (
    Generation,
    GenerationRequest,
    InvalidRequest,
    as_invalid_request,
    sampling_params,
)
from raggrpo_trainer.engines.in_process_engine import InProcessEngine

REQUEST = GenerationRequest((), 1, temperature=1.0, seed=0)
COMPLETION = Generation((1,), (0.0,), "stop", 0)


def reject(*_: Any) -> Any:
    raise VLLMValidationError("The decoder prompt cannot be empty")


@pytest.mark.parametrize("error", [VLLMValidationError("too long"), ValueError("too long")])
def test_rejected_request_is_converted_to_invalid_request(error: Exception) -> None:
    with pytest.raises(InvalidRequest, match="too long"), as_invalid_request():
        raise error


def test_invalid_sampling_params_are_converted_to_invalid_request() -> None:
    with pytest.raises(InvalidRequest, match="top_p"), as_invalid_request():
        sampling_params(GenerationRequest((1,), 1, temperature=1.0, seed=0, top_p=7.0))


@pytest.mark.parametrize("error", [EngineDeadError(), EngineGenerateError(), RuntimeError()])
def test_engine_failure_is_not_converted_to_invalid_request(error: Exception) -> None:
    with pytest.raises(type(error)), as_invalid_request():
        raise error


async def test_actor_returns_invalid_request_next_to_completions() -> None:
    actor: Any = object.__new__(RolloutActor)
    actor._dead, actor._epoch = None, 0
    actor._engine = SimpleNamespace(start=lambda _: [completed(), rejected()])
    outcomes = {i: outcome async for batch in actor.generate(0, []) for i, outcome in batch}
    assert outcomes[0] == COMPLETION
    received = pickle.loads(pickle.dumps(outcomes[1]))
    assert isinstance(received, InvalidRequest)
    assert received.reason == "too long"


async def completed() -> Generation:
    return COMPLETION


async def rejected() -> Generation:
    raise InvalidRequest("too long")


async def test_async_engine_raises_invalid_request() -> None:
    engine: Any = object.__new__(AsyncEngine)
    engine._num_requests, engine._running = 0, set()
    engine._outputs, engine._dead_error = [], EngineDeadError
    engine._engine = SimpleNamespace(generate=reject)
    [future] = engine.start([REQUEST])
    with pytest.raises(InvalidRequest, match="cannot be empty"):
        await future
    assert engine._running == set()


def test_in_process_engine_raises_invalid_request() -> None:
    engine: Any = object.__new__(InProcessEngine)
    engine._num_requests, engine._running = 0, {}
    engine._core = SimpleNamespace(add_request=reject)
    future: Future[Any] = Future()
    engine._add(REQUEST, future)
    with pytest.raises(InvalidRequest, match="cannot be empty"):
        future.result()
    assert engine._running == {}
