"""How weights get from the ranks to the engines. Imports neither torch nor Ray.

    sent = await ranks.send_weights(step)      # every rank's actor: sender.send(...)
    await pool.load_weights(sent)              # every engine's actor: receiver.received(...)
    pool.submit(requests)                      # sampled from the policy after `step`

`load_weights` returns once every engine holds the version, so a step never samples from an older
one. With `offPolicySteps: 1` generation continues meanwhile: tokens sampled before the update keep
the log-probabilities of the policy that sampled them. A replacement engine loads the newest
version before it serves requests.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class SentWeights:
    """One version of the weights, as the driver knows it."""

    version: int
    """The step that produced them."""
    handle: str
    """The sender's name for them."""
    node: str
    """The node that holds them."""
    fetch: Callable[[], Any]
    """Returns a reference to their bytes, for engines on other nodes."""

    def data_for(self, node: str) -> Any:
        """Return what an engine on `node` needs besides the handle."""
        return None if node == self.node else self.fetch()


class SenderLost(Exception):
    """The process that had sent the weights is gone, and they with it."""


class WeightSender(Protocol):
    """A rank's side, in its actor's process."""

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
    """An engine's side, in its actor's process."""

    def received(self, handle: str, data: Any) -> AbstractAsyncContextManager[str]:
        """Return a context that yields the path of the weights file, valid inside it.

        Raises SenderLost if there is none any more.
        """
        ...
