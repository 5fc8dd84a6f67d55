import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from raggrpo_api.spec.resources import ResourcesSpec
from raggrpo_trainer.host.pod_processes import PodProcess
from raggrpo_trainer.ranks.rank_parts import RankParts
from raggrpo_trainer.weights.transfer import (
    PartsBroken,
    SentFile,
    SentInParts,
    WeightWay,
    weight_way,
)


class Engine:
    """A receiver that notes what it is told; fails at the part of this number."""

    def __init__(self, pid: int, num_devices: int = 1, fails_at: int | None = None) -> None:
        self.process, self.num_devices = PodProcess("node", pid), num_devices
        self.fails_at = fails_at
        self.told: list[Any] = []

    async def load_file(self, version: int, handle: str, data: Any) -> None:
        self.told.append((version, handle, data))

    async def wake(self) -> None:
        raise AssertionError("whoever can replace it wakes it")

    async def begin(self, way: Mapping[str, Any] | None) -> None:
        self.told.append(way)

    async def read(self, part: Mapping[str, Any]) -> None:
        self.told.append(part["names"])
        if self.fails_at == len(self.told) - 2:
            raise ConnectionError("the engine died")

    async def finish(self, version: int) -> None:
        self.told.append(version)


class TwoRanks:
    """Two ranks that send three parts."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.asked: list[Mapping[str, Any]] = []
        self.left: list[str] = []
        self.waits_at_part = 0

    async def call(self, method: str, on_all: bool, arguments: Mapping[str, Any]) -> list[Any]:
        self.calls.append(method)
        self.asked.append(arguments)
        if method == "address":
            return [("10.0.0.1", 1234)]
        if method == "next_part":
            assert on_all, "gathering a tensor is collective"
            self.left = ["a", "b", "c"] if arguments["first"] else self.left[1:]
            return [self._part(gpu, maps=arguments["maps"]) for gpu in ("gpu-0", "gpu-1")]
        if method == "broadcast_part" and self.calls.count(method) == self.waits_at_part:
            await asyncio.Event().wait()
        return [None]

    async def file(self) -> SentFile:
        return SentFile(7, "/dev/shm/file", "node", fetch=lambda: None)

    def _part(self, gpu: str, *, maps: bool) -> dict[str, Any] | None:
        if not self.left:
            return None
        part: dict[str, Any] = {
            "names": [self.left[0]],
            "dtype_names": ["bfloat16"],
            "shapes": [[2]],
        }
        return part | ({"tensor_sizes": [4], "handle": gpu.encode()} if maps else {})


@pytest.mark.parametrize(
    ("resources", "way"),
    [
        ({"device": "CPU"}, WeightWay.SHARED_MEMORY),
        ({"device": "CPU", "placement": "Disaggregated"}, WeightWay.SHARED_MEMORY),
        ({"placement": "Colocated"}, WeightWay.IPC),
        ({"placement": "Disaggregated"}, WeightWay.NCCL),
    ],
)
def test_device_and_placement_choose_the_way(resources: dict[str, Any], way: WeightWay) -> None:
    assert weight_way(ResourcesSpec.model_validate(resources)) is way


def in_parts(ranks: TwoRanks, way: WeightWay, version: int = 7) -> SentInParts:
    return SentInParts(version, RankParts(ranks.call, way), ranks.file)


async def test_engines_that_share_gpus_map_each_part_on_their_own() -> None:
    ranks, engines = TwoRanks(), [Engine(1), Engine(2)]
    parts: list[Mapping[str, Any]] = []

    async def read(part: Mapping[str, Any]) -> None:
        parts.append(part)

    engines[1].read = read  # type: ignore[method-assign]

    sent = in_parts(ranks, WeightWay.IPC)
    assert await sent.prepare(), "an engine that is lost can still be replaced"
    assert ranks.calls == ["drop_parts"], "ranks make room before an engine wakes"
    assert await sent.load_into(engines) == [None, None]

    assert engines[0].told == [{"packed": True}, ["a"], ["b"], ["c"], 7]
    assert parts == [
        {
            "names": [name],
            "dtype_names": ["bfloat16"],
            "shapes": [[2]],
            "tensor_sizes": [4],
            "handles": [b"gpu-0", b"gpu-1"],
        }
        for name in "abc"
    ]
    assert ranks.calls[1:] == [*["next_part"] * 4, "drop_parts"], "engines keep the buffer so long"


@pytest.mark.row("G3")
@pytest.mark.parametrize("way", [WeightWay.IPC, WeightWay.NCCL])
async def test_an_engine_lost_among_the_parts_ends_the_sending_and_nothing_hangs(
    way: WeightWay,
) -> None:
    ranks, engines = TwoRanks(), [Engine(1), Engine(2, fails_at=1)]
    ranks.waits_at_part = 2  # in a broadcast, for the engine that is gone

    with pytest.raises(PartsBroken, match="the engine died"):
        async with asyncio.timeout(10):
            await in_parts(ranks, way).load_into(engines)

    assert engines[0].told[-1] != 7


async def test_an_engine_that_comes_later_reads_a_file() -> None:
    engine = Engine(3)
    await in_parts(TwoRanks(), WeightWay.NCCL).load_late(engine)
    assert engine.told == [(7, "/dev/shm/file", None)]


async def test_engines_elsewhere_join_once_and_again_when_one_is_another() -> None:
    ranks = TwoRanks()
    source = RankParts(ranks.call, WeightWay.NCCL)
    engines: Sequence[Engine] = [Engine(1, num_devices=2), Engine(2, num_devices=2)]

    await SentInParts(1, source, ranks.file).load_into(engines)
    await SentInParts(2, source, ranks.file).load_into(engines)

    where = {"master_address": "10.0.0.1", "master_port": 1234, "world_size": 5}
    assert engines[0].told[0] == where | {"rank_offset": 1}
    assert engines[1].told[0] == where | {"rank_offset": 3}
    assert engines[0].told[5] is None, "they are connected already"
    assert ranks.calls.count("join_engines") == 1
    assert ranks.calls.count("broadcast_part") == 6
    assert {"address": ("10.0.0.1", 1234), "world_size": 5} in ranks.asked

    replaced = [engines[0], Engine(4, num_devices=2)]
    await SentInParts(3, source, ranks.file).load_into(replaced)
    assert ranks.calls.count("join_engines") == 2
