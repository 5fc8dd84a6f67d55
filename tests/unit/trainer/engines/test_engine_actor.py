from collections.abc import Mapping
from typing import Any, cast

import pytest

from raggrpo_api.spec.monitoring import LogLevel
from raggrpo_trainer.engines import engine_actor
from raggrpo_trainer.engines.engine import EngineOptions
from raggrpo_trainer.engines.engine_actor import RolloutActor, StaleEpoch
from raggrpo_trainer.engines.engine_failure import EngineDead


class FakeEngine:
    """Takes parts; refuses those that name no tensor."""

    def __init__(self, _options: EngineOptions) -> None:
        self.told: list[Any] = []

    async def begin_update(self, way: Mapping[str, Any] | None) -> None:
        self.told.append(way)

    async def read_part(self, part: Mapping[str, Any]) -> None:
        if not part["names"]:
            raise ValueError("a part without tensors")
        self.told.append(part["names"])

    async def finish_update(self, version: int) -> None:
        self.told.append(version)


@pytest.fixture
def actor(monkeypatch: pytest.MonkeyPatch) -> RolloutActor:
    monkeypatch.setattr(engine_actor, "AsyncEngine", FakeEngine)
    monkeypatch.setattr(engine_actor, "own_outputs", list)
    return RolloutActor(cast(EngineOptions, None), asynchronous=True)


async def test_parts_reach_the_engine_in_order(actor: RolloutActor) -> None:
    await actor.begin_update(0, {"packed": True})
    await actor.read_part(0, {"names": ["a"]})
    await actor.finish_update(0, 3)

    assert cast(FakeEngine, actor._engine).told == [{"packed": True}, ["a"], 3]


async def test_an_engine_that_failed_among_the_parts_is_not_used_again(actor: RolloutActor) -> None:
    await actor.begin_update(0, None)
    with pytest.raises(EngineDead, match="a part without tensors"):
        await actor.read_part(0, {"names": []})
    with pytest.raises(EngineDead):
        await actor.begin_update(0, None)


async def test_an_engine_whose_driver_ended_among_the_parts_is_not_adopted(
    actor: RolloutActor,
) -> None:
    await actor.begin_update(0, None)
    with pytest.raises(EngineDead, match="while weights were sent in parts"):
        await actor.adopt(1, "", "engine-0", LogLevel.INFO)


async def test_parts_of_a_superseded_driver_are_refused(actor: RolloutActor) -> None:
    actor._epoch = 2
    with pytest.raises(StaleEpoch):
        await actor.read_part(1, {"names": ["a"]})


async def test_a_superseded_driver_does_no_harm_to_an_engine_that_reads_parts(
    actor: RolloutActor,
) -> None:
    actor._epoch = 2
    await actor.begin_update(2, None)
    with pytest.raises(StaleEpoch):
        await actor.adopt(1, "", "engine-0", LogLevel.INFO)

    await actor.read_part(2, {"names": ["a"]})
