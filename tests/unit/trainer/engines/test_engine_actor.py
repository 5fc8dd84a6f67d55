from collections.abc import Mapping
from typing import Any, cast

import pytest

from raggrpo_api.spec.monitoring import LogLevel
from raggrpo_trainer.engines import engine_actor
from raggrpo_trainer.engines.engine_actor import RolloutActor, StaleEpoch
from raggrpo_trainer.engines.engine_failure import EngineDead
from raggrpo_trainer.engines.engine_options import EngineOptions


class FakeEngine:
    """Engine that records chunks and rejects those without a tensor."""

    def __init__(self, _options: EngineOptions) -> None:
        self.calls: list[Any] = []

    async def start_update(self, init_info: Mapping[str, Any] | None) -> None:
        self.calls.append(init_info)

    async def load_chunk(self, chunk: Mapping[str, Any]) -> None:
        if not chunk["names"]:
            raise ValueError("a chunk without tensors")
        self.calls.append(chunk["names"])

    async def finish_update(self, version: int) -> None:
        self.calls.append(version)

    async def sleep(self) -> None:
        raise RuntimeError("Call to sleep method failed: Memory usage increased after sleeping.")

    async def wake(self) -> None:
        raise RuntimeError("Call to wake_up method failed: CUDA Error: out of memory at cumem:9")


@pytest.fixture
def actor(monkeypatch: pytest.MonkeyPatch) -> RolloutActor:
    monkeypatch.setattr(engine_actor, "AsyncEngine", FakeEngine)
    monkeypatch.setattr(engine_actor, "own_outputs", list)
    return RolloutActor(cast(EngineOptions, None), asynchronous=True)


async def test_weight_chunks_reach_engine_in_order(actor: RolloutActor) -> None:
    await actor.start_update(0, {"packed": True})
    await actor.load_chunk(0, {"names": ["a"]})
    await actor.finish_update(0, 3)

    assert cast(FakeEngine, actor._engine).calls == [{"packed": True}, ["a"], 3]


async def test_engine_is_dead_after_failed_weight_chunk(actor: RolloutActor) -> None:
    await actor.start_update(0, None)
    with pytest.raises(EngineDead, match="a chunk without tensors"):
        await actor.load_chunk(0, {"names": []})
    with pytest.raises(EngineDead):
        await actor.start_update(0, None)


@pytest.mark.parametrize("method", ["sleep", "wake"])
async def test_engine_with_partly_mapped_memory_is_dead(actor: RolloutActor, method: str) -> None:
    with pytest.raises(EngineDead, match=r"method failed: (Memory|CUDA Error: out of memory)"):
        await getattr(actor, method)(0)
    with pytest.raises(EngineDead):
        await actor.adopt(1, "", "engine-0", LogLevel.INFO)


async def test_engine_is_not_reused_when_driver_exited_during_weight_transfer(
    actor: RolloutActor,
) -> None:
    await actor.start_update(0, None)
    with pytest.raises(EngineDead, match="the driver exited during a weight transfer"):
        await actor.adopt(1, "", "engine-0", LogLevel.INFO)


async def test_weight_chunk_from_superseded_driver_is_rejected(actor: RolloutActor) -> None:
    actor._epoch = 2
    with pytest.raises(StaleEpoch):
        await actor.load_chunk(1, {"names": ["a"]})


async def test_weight_transfer_continues_after_call_from_superseded_driver(
    actor: RolloutActor,
) -> None:
    actor._epoch = 2
    await actor.start_update(2, None)
    with pytest.raises(StaleEpoch):
        await actor.adopt(1, "", "engine-0", LogLevel.INFO)

    await actor.load_chunk(2, {"names": ["a"]})
