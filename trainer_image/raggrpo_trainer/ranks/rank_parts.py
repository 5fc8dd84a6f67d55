"""The ranks as a source of weights in GPU memory; see `weights.transfer`."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from raggrpo_trainer.host.pod_processes import PodProcess
from raggrpo_trainer.weights.transfer import Receiver, WeightWay

Call = Callable[[str, bool, Mapping[str, Any]], Awaitable[list[Any]]]
"""Calls a method of rank 0 or, if the flag is set, of all ranks, and returns what each answers."""


class RankParts:
    """A `PartSource`."""

    def __init__(self, call: Call, way: WeightWay) -> None:
        self._call, self._maps = call, way is WeightWay.IPC
        self._joined: list[PodProcess] = []
        self._joining: asyncio.Future[list[Any]] | None = None

    async def connect(self, receivers: Sequence[Receiver]) -> list[Mapping[str, Any] | None]:
        """Return vLLM's init information: all of a rank's peers if they broadcast."""
        if self._maps:
            return [{"packed": True}] * len(receivers)
        engines = [receiver.process for receiver in receivers]
        if engines == self._joined:
            return [None] * len(receivers)
        [address] = await self._call("address", False, {})
        world_size = 1 + sum(receiver.num_devices for receiver in receivers)
        joining = self._call("join_engines", False, {"address": address, "world_size": world_size})
        self._joining, self._joined = asyncio.ensure_future(joining), engines
        ways: list[Mapping[str, Any] | None] = []
        offset = 1
        for receiver in receivers:
            ways.append(
                {"master_address": address[0], "master_port": address[1], "rank_offset": offset,
                 "world_size": world_size}
            )  # fmt: skip
            offset += receiver.num_devices
        return ways

    async def connected(self) -> None:
        """Return once rank 0 has joined the engines."""
        joining, self._joining = self._joining, None
        if joining is not None:
            await joining

    async def next_part(self, *, first: bool) -> Mapping[str, Any] | None:
        """Have every rank prepare the part; each has it on its own GPU."""
        of_ranks = await self._call("next_part", True, {"first": first, "maps": self._maps})
        part: dict[str, Any] | None = of_ranks[0]
        if part is None or not self._maps:
            return part
        handles = [each["handle"] for each in of_ranks]
        return {name: part[name] for name in part if name != "handle"} | {"handles": handles}

    async def free(self) -> None:
        """Have every rank give its cached memory back."""
        await self._call("drop_parts", True, {})

    async def broadcast(self) -> None:
        """Have rank 0 send the part, unless the engines map it."""
        if not self._maps:
            await self._call("broadcast_part", False, {})
