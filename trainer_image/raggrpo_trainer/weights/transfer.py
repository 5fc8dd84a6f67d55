"""How weights get from the ranks to the engines. Imports neither torch nor Ray.

    sent = await ranks.send_weights(step, way)  # a `SentWeights`
    await pool.load_weights(sent)               # every engine reads it: sent.load_into(receivers)
    pool.submit(requests)                       # sampled from the policy after `step`

There are three ways. Through shared memory the weights are one file, which engines may read at any
later time. In GPU memory they are parts, of which one at a time exists: ranks and engines take
turns, and an engine that comes later has them sent again. `load_weights` returns once every engine
holds the version, so a step never samples from an older one. With `offPolicySteps: 1` generation
continues meanwhile: tokens sampled before the update keep the log-probabilities of the policy that
sampled them. A replacement engine loads the newest version before it serves requests.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
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

    async def load_into(self, receivers: Sequence[Receiver]) -> Errors:
        """Have these engines hold this version; an engine's error leaves the others alone."""
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


class PartSource(Protocol):
    """The ranks, as the driver calls them."""

    turn: asyncio.Lock
    """Held while parts are sent."""
    is_shared: bool
    """Ranks and all receivers take part in one call, which none can leave."""

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


class SentInParts:
    """Weights that stay in GPU memory, one part at a time."""

    def __init__(self, version: int, source: PartSource) -> None:
        self.version, self._source = version, source

    async def load_into(self, receivers: Sequence[Receiver]) -> Errors:
        """Send every part to all of them; one that fails is sent no more."""
        async with self._source.turn:
            errors: Errors = [None] * len(receivers)
            ways = await self._source.connect(receivers)
            joining = asyncio.ensure_future(self._source.connected())
            await _each(errors, lambda i: receivers[i].begin(ways[i]))
            await self._together(joining, errors)
            part = await self._source.next_part(first=True)
            while part is not None:
                sending = asyncio.ensure_future(self._source.broadcast())
                await _each(errors, partial(_read, receivers, part))
                await self._together(sending, errors)
                part = await self._source.next_part(first=False)
            await _each(errors, lambda i: receivers[i].finish(self.version))
            return errors

    async def _together(self, sending: "asyncio.Future[None]", errors: Errors) -> None:
        """Await the ranks' side; it never ends if it is shared with a receiver that failed."""
        failed = next((error for error in errors if error is not None), None)
        if failed is not None and self._source.is_shared:
            sending.cancel()
            raise BroadcastBroken(str(failed)) from failed
        await sending


async def _each(errors: Errors, call: Callable[[int], Awaitable[None]]) -> None:
    """Call every receiver without an error, and note the error that it raises."""
    going = [i for i, error in enumerate(errors) if error is None]
    for i, error in zip(going, await _all(call(i) for i in going), strict=True):
        errors[i] = error


async def _read(receivers: Sequence[Receiver], part: Mapping[str, Any], index: int) -> None:
    await receivers[index].read(part)


async def _all(calls: Iterable[Awaitable[None]]) -> Errors:
    found = await asyncio.gather(*calls, return_exceptions=True)
    for error in found:
        if error is not None and not isinstance(error, Exception):
            raise error  # the driver is being stopped
    return [error if isinstance(error, Exception) else None for error in found]


class BroadcastBroken(Exception):
    """An engine failed in the middle of a broadcast; the ranks wait for it forever."""


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
