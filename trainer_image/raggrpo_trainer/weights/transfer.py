"""The driver's side of a weight transfer. Imports neither torch nor Ray.

A `WeightTransfer` loads one version of the weights into the engines; it is a `FileTransfer` or a
`ChunkTransfer`. `Receiver` and `ChunkSource` are the driver's interfaces to engines and ranks.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from raggrpo_trainer.host.pod_processes import PodProcess

Errors = list[Exception | None]
"""The error of each receiver, or None for a receiver that loaded the version."""


class ChunkTransferFailed(Exception):
    """An engine failed during a chunk transfer."""


class RankLost(Exception):
    """The rank that wrote the weights file has exited; its files are gone."""


class Receiver(Protocol):
    """One engine, as called by the driver. Every call may raise Ray's errors."""

    process: "PodProcess"
    num_devices: int

    async def load_file(self, version: int, handle: str, data: Any) -> None:
        """Load a weights file; `data` is its content if the file is on another node."""
        ...

    async def wake(self) -> None:
        """Reallocate the GPU memory freed by `sleep`."""
        ...

    async def start_update(self, init_info: Mapping[str, Any] | None) -> None:
        """Pause generation and prepare for chunks; `init_info` is None if already connected."""
        ...

    async def load_chunk(self, chunk: Mapping[str, Any]) -> None:
        """Load one chunk."""
        ...

    async def finish_update(self, version: int) -> None:
        """Apply the loaded chunks and resume generation."""
        ...


class WeightTransfer(Protocol):
    """The transfer of one version of the weights to the engines."""

    @property
    def version(self) -> int:
        """The step that produced the weights."""
        ...

    @property
    def needs_all_engines(self) -> bool:
        """Whether a lost engine must be replaced before `load_into`, not after it."""
        ...

    async def prepare(self) -> None:
        """Free the ranks' device memory that engines are about to use."""
        ...

    async def load_into(self, receivers: Sequence[Receiver]) -> Errors:
        """Load this version into all engines and return each engine's error."""
        ...

    async def load_into_replacement(self, receiver: Receiver) -> None:
        """Load this version into an engine that was started after `load_into`."""
        ...


@dataclass(frozen=True, slots=True)
class FileTransfer:
    """A `WeightTransfer` through a file in shared memory."""

    version: int
    handle: str
    """Path of the file on its node."""
    node: str
    """Ray node on which the file is."""
    fetch: Callable[[], Any]
    """Function that returns an object reference to the content, for engines on other nodes."""
    needs_all_engines: ClassVar[bool] = False

    async def prepare(self) -> None:
        """Do nothing: the ranks freed their device memory when they wrote the file."""

    async def load_into(self, receivers: Sequence[Receiver]) -> Errors:
        """Load the file into all engines concurrently."""
        return await _gather_errors(
            receiver.load_file(
                self.version,
                self.handle,
                None if receiver.process.node == self.node else self.fetch(),
            )
            for receiver in receivers
        )

    async def load_into_replacement(self, receiver: Receiver) -> None:
        """Load the file into the replacement."""
        [error] = await self.load_into([receiver])
        if error is not None:
            raise error


class ChunkSource(Protocol):
    """The ranks as the source of tensor chunks; one implementation per backend."""

    async def connect(self, receivers: Sequence[Receiver]) -> list[Mapping[str, Any] | None]:
        """Start to connect the ranks to these engines; return each engine's init information."""
        ...

    async def wait_connected(self) -> None:
        """Wait until the ranks and all engines are connected."""
        ...

    async def next_chunk(self, *, first: bool) -> Mapping[str, Any] | None:
        """Gather the next chunk and return its description, or None after the last one."""
        ...

    async def broadcast(self) -> None:
        """Send the gathered chunk to all engines; does nothing if the engines map the chunk."""
        ...

    async def free(self) -> None:
        """Free the ranks' chunks and cached device memory."""
        ...


@dataclass(frozen=True, slots=True)
class ChunkTransfer:
    """A `WeightTransfer` from GPU to GPU, one tensor chunk at a time."""

    version: int
    source: ChunkSource
    write_file: Callable[[], Awaitable[FileTransfer]]
    """Function that writes the ranks' current weights to a file."""
    needs_all_engines: ClassVar[bool] = True

    async def prepare(self) -> None:
        """Free the ranks' cached device memory."""
        await self.source.free()

    async def load_into(self, receivers: Sequence[Receiver]) -> Errors:
        """Load every chunk into all engines. Raises ChunkTransferFailed if one engine fails.

        A failed engine cannot be replaced during the transfer: the ranks would wait for it in a
        broadcast forever, and a buffer that it had mapped would never be freed.
        """
        source = self.source
        init_infos = await source.connect(receivers)
        starts = [
            receiver.start_update(init_info)
            for receiver, init_info in zip(receivers, init_infos, strict=True)
        ]
        await _gather_both(starts, source.wait_connected())
        chunk = await source.next_chunk(first=True)
        while chunk is not None:
            loads = [receiver.load_chunk(chunk) for receiver in receivers]
            await _gather_both(loads, source.broadcast())
            chunk = await source.next_chunk(first=False)
        await _gather_both([receiver.finish_update(self.version) for receiver in receivers])
        await source.free()
        return [None] * len(receivers)

    async def load_into_replacement(self, receiver: Receiver) -> None:
        """Write the weights to a file and load the file into the replacement."""
        await (await self.write_file()).load_into_replacement(receiver)


async def _gather_both(
    engine_calls: Iterable[Awaitable[None]], *rank_calls: Awaitable[None]
) -> None:
    """Await both sides; raise the first error at once, as the other side may never finish."""
    tasks = [asyncio.ensure_future(_translate_error(call)) for call in engine_calls]
    tasks += [asyncio.ensure_future(call) for call in rank_calls]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _translate_error(engine_call: Awaitable[None]) -> None:
    try:
        await engine_call
    except Exception as error:
        raise ChunkTransferFailed(str(error)) from error


async def _gather_errors(calls: Iterable[Awaitable[None]]) -> Errors:
    errors = await asyncio.gather(*calls, return_exceptions=True)
    for error in errors:
        if error is not None and not isinstance(error, Exception):
            raise error  # the driver is being stopped
    return [error if isinstance(error, Exception) else None for error in errors]
