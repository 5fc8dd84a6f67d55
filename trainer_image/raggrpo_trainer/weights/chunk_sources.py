"""The ranks as the source of tensor chunks, on the driver's side: one class per GPU backend."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from raggrpo_trainer.host.pod_processes import PodProcess

from .backend import WeightTransferBackend
from .transfer import ChunkSource, Receiver

RankCall = Callable[[str, bool, Mapping[str, Any]], Awaitable[list[Any]]]
"""Function of (method, on_all, arguments) that calls all ranks or rank 0; returns their results."""


class IpcSource:
    """A `ChunkSource` whose engines map a buffer on the GPU that they share with a rank."""

    def __init__(self, call: RankCall) -> None:
        self._call = call

    async def connect(self, receivers: Sequence[Receiver]) -> list[Mapping[str, Any] | None]:
        """Return vLLM's init information; there is nothing to connect."""
        return [{"packed": True}] * len(receivers)

    async def wait_connected(self) -> None:
        """Return at once: there is nothing to connect."""

    async def next_chunk(self, *, first: bool) -> Mapping[str, Any] | None:
        """Gather the next chunk into each rank's buffer; return it with the ranks' `handles`."""
        arguments = {"first": first, "backend": WeightTransferBackend.IPC}
        chunks = await self._call("next_chunk", True, arguments)
        if chunks[0] is None:
            return None
        chunk: dict[str, Any] = dict(chunks[0])
        del chunk["handle"]
        return chunk | {"handles": [each["handle"] for each in chunks]}

    async def broadcast(self) -> None:
        """Do nothing: engines map the buffer."""

    async def free(self) -> None:
        """Free the ranks' buffers and cached device memory."""
        await self._call("free_chunks", True, {})


class NcclSource:
    """A `ChunkSource` that broadcasts from rank 0 to the engines' workers."""

    def __init__(self, call: RankCall) -> None:
        self._call = call
        self._connected: list[PodProcess] = []
        self._connecting: asyncio.Future[list[Any]] | None = None

    async def connect(self, receivers: Sequence[Receiver]) -> list[Mapping[str, Any] | None]:
        """Start forming an NCCL group of rank 0 and all workers, unless it already exists.

        Returns vLLM's init information for each engine. Trainer rank 0 is rank 0 of the group.
        """
        engines = [receiver.process for receiver in receivers]
        if engines == self._connected:
            return [None] * len(receivers)
        [address] = await self._call("address", False, {})
        world_size = 1 + sum(receiver.num_devices for receiver in receivers)
        joining = self._call(
            "join_nccl_group", False, {"address": address, "world_size": world_size}
        )
        self._connecting = asyncio.ensure_future(joining)
        self._connected = engines
        master_address, master_port = address
        init_infos: list[Mapping[str, Any] | None] = []
        rank_offset = 1
        for receiver in receivers:
            init_infos.append(
                {
                    "master_address": master_address,
                    "master_port": master_port,
                    "rank_offset": rank_offset,
                    "world_size": world_size,
                }
            )
            rank_offset += receiver.num_devices
        return init_infos

    async def wait_connected(self) -> None:
        """Wait until rank 0 has joined the group."""
        connecting = self._connecting
        self._connecting = None
        if connecting is not None:
            await connecting

    async def next_chunk(self, *, first: bool) -> Mapping[str, Any] | None:
        """Gather the next chunk; all ranks take part."""
        arguments = {"first": first, "backend": WeightTransferBackend.NCCL}
        chunks = await self._call("next_chunk", True, arguments)
        chunk: Mapping[str, Any] | None = chunks[0]
        return chunk

    async def broadcast(self) -> None:
        """Broadcast the gathered chunk from rank 0."""
        await self._call("broadcast_chunk", False, {})

    async def free(self) -> None:
        """Free the ranks' tensors and cached device memory."""
        await self._call("free_chunks", True, {})


def chunk_source(backend: WeightTransferBackend, call: RankCall) -> ChunkSource:
    """Return the chunk source of a GPU backend. Raises ValueError for SharedMemory."""
    match backend:
        case WeightTransferBackend.IPC:
            return IpcSource(call)
        case WeightTransferBackend.NCCL:
            return NcclSource(call)
    raise ValueError(f"{backend} does not transfer chunks")
