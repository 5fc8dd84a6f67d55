"""How weights get from the ranks to the engines. Imports neither torch nor Ray.

    sent = await ranks.send_weights(step, way)  # a `SentWeights`
    await pool.load_weights(sent)               # every engine reads it: sent.load_into(receivers)
    pool.submit(requests)                       # sampled from the policy after `step`

There are three ways. Through shared memory the weights are one file, which engines may read at any
later time. In GPU memory they are parts, one after the other: ranks and engines take turns, and
a failure among the parts ends the attempt. `load_weights` returns once every engine holds the
version, so a step never samples from an older one. With `offPolicySteps: 1` generation continues
meanwhile: tokens sampled before the update keep the log-probabilities of the policy that sampled
them. A replacement engine loads the newest version before it serves requests, always from a file.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from raggrpo_api.spec.resources import Device, Placement, ResourcesSpec

if TYPE_CHECKING:
    from torch import Tensor

    from raggrpo_trainer.host.pod_processes import PodProcess

Errors = list[Exception | None]
"""One per receiver; None: it holds the version."""


class WeightWay(StrEnum):
    """How the engines get weights."""

    SHARED_MEMORY = "SharedMemory"
    IPC = "IPC"
    """Engines map the memory of the GPU that they share with a rank (CUDA IPC)."""
    NCCL = "NCCL"
    """Rank 0 broadcasts to engines on other GPUs."""


def weight_way(resources: ResourcesSpec) -> WeightWay:
    """Return the way that suits device and placement."""
    if resources.device is Device.CPU:
        return WeightWay.SHARED_MEMORY
    return WeightWay.IPC if resources.placement is Placement.COLOCATED else WeightWay.NCCL


class Receiver(Protocol):
    """One engine, as the driver calls it; every call raises what Ray raises."""

    process: "PodProcess"
    num_devices: int

    async def load_file(self, version: int, handle: str, data: Any) -> None:
        """Load a whole file; `data` holds it if it lies on another node."""
        ...

    async def wake(self) -> None:
        """Take back the memory of a GPU shared with a rank."""
        ...

    async def begin(self, way: Mapping[str, Any] | None) -> None:
        """Stop generating and expect parts; `way`: how the parts will come, if that is new."""
        ...

    async def read(self, part: Mapping[str, Any]) -> None:
        """Read one part."""
        ...

    async def finish(self, version: int) -> None:
        """Put the parts into use and go on generating."""
        ...


class SentWeights(Protocol):
    """One version of the weights, as the driver knows it."""

    @property
    def version(self) -> int:
        """The step that produced them."""
        ...

    async def prepare(self) -> bool:
        """Make room for engines; return whether all must be known to answer before they load."""
        ...

    async def load_into(self, receivers: Sequence[Receiver]) -> Errors:
        """Have all engines hold this version, and return what kept each from it."""
        ...

    async def load_late(self, receiver: Receiver) -> None:
        """Have an engine that came later hold it, too."""
        ...


@dataclass(frozen=True, slots=True)
class SentFile:
    """Weights in shared memory."""

    version: int
    handle: str
    """The sender's name for them."""
    node: str
    """The node that holds them."""
    fetch: Callable[[], Any]
    """Returns a reference to their bytes, for engines on other nodes."""

    async def prepare(self) -> bool:
        """Do nothing: ranks made room when they wrote the file."""
        return False

    async def load_into(self, receivers: Sequence[Receiver]) -> Errors:
        """Load the file, all engines at once."""
        return await _all(
            receiver.load_file(
                self.version,
                self.handle,
                None if receiver.process.node == self.node else self.fetch(),
            )
            for receiver in receivers
        )

    async def load_late(self, receiver: Receiver) -> None:
        """Load the file."""
        [error] = await self.load_into([receiver])
        if error is not None:
            raise error


class PartSource(Protocol):
    """The ranks, as the driver calls them."""

    async def connect(self, receivers: Sequence[Receiver]) -> list[Mapping[str, Any] | None]:
        """Prepare to send to these; return what each of them must know."""
        ...

    async def connected(self) -> None:
        """Return once the ranks and all receivers are connected."""
        ...

    async def next_part(self, *, first: bool) -> Mapping[str, Any] | None:
        """Prepare the next part and describe it; None after the last."""
        ...

    async def broadcast(self) -> None:
        """Send the part to all receivers; returns at once where they read it by themselves."""
        ...

    async def free(self) -> None:
        """Give back the memory that the ranks need neither for parts nor for themselves."""
        ...


@dataclass(frozen=True, slots=True)
class SentInParts:
    """Weights that stay in GPU memory, one part at a time."""

    version: int
    source: PartSource
    file: Callable[[], Awaitable[SentFile]]
    """Has the ranks write their weights, as they are by then, into a file."""

    async def prepare(self) -> bool:
        """Have the ranks make room."""
        await self.source.free()
        return True

    async def load_into(self, receivers: Sequence[Receiver]) -> Errors:
        """Send every part to all of them. Raises PartsBroken if one of them fails.

        It cannot be replaced here: in a broadcast the ranks wait for it forever, and what its
        GPU's rank has offered to map would never be freed.
        """
        source = self.source
        ways = await source.connect(receivers)
        begun = [receiver.begin(way) for receiver, way in zip(receivers, ways, strict=True)]
        await _together(begun, source.connected())
        part = await source.next_part(first=True)
        while part is not None:
            await _together([receiver.read(part) for receiver in receivers], source.broadcast())
            part = await source.next_part(first=False)
        await _together([receiver.finish(self.version) for receiver in receivers])
        await source.free()
        return [None] * len(receivers)

    async def load_late(self, receiver: Receiver) -> None:
        """Load a file."""
        await (await self.file()).load_late(receiver)


async def _together(received: Iterable[Awaitable[None]], *sent: Awaitable[None]) -> None:
    """Await both sides; the first failure ends the waiting, for the other side may never end."""
    tasks = [asyncio.ensure_future(_unbroken(each)) for each in received]
    tasks += [asyncio.ensure_future(each) for each in sent]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _unbroken(received: Awaitable[None]) -> None:
    try:
        await received
    except Exception as error:
        raise PartsBroken(str(error)) from error


async def _all(calls: Iterable[Awaitable[None]]) -> Errors:
    found = await asyncio.gather(*calls, return_exceptions=True)
    for error in found:
        if error is not None and not isinstance(error, Exception):
            raise error  # the driver is being stopped
    return [error if isinstance(error, Exception) else None for error in found]


class PartsBroken(Exception):
    """An engine failed among the parts."""


class SenderLost(Exception):
    """The process that had sent the weights is gone, and they with it."""


class WeightSender(Protocol):
    """A rank's side of shared memory, in its actor's process."""

    def send(self, version: int, weights: Iterable[tuple[str, "Tensor"]]) -> str:
        """Publish a version, return its handle; every rank must exhaust `weights` (collective)."""
        ...

    def data(self, handle: str) -> Any:
        """Return a version's bytes for another node; Ray shares them without copying."""
        ...

    def close(self) -> None:
        """Free what was sent."""
        ...


class WeightReceiver(Protocol):
    """An engine's side of shared memory, in its actor's process."""

    def received(self, handle: str, data: Any) -> AbstractAsyncContextManager[str]:
        """Return a context that yields the path of the weights file, valid inside it.

        Raises SenderLost if there is none any more.
        """
        ...
