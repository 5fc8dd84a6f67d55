"""How a version of the weights gets from the ranks to the engines. Imports neither torch nor Ray.

    sent = await ranks.send_weights(step)      # every rank's actor: sender.send(...)
    await pool.wake()                          # colocated engines take their device back
    await pool.load_weights(sent)              # every engine's actor: receiver.received(...)
    pool.submit(requests)                      # sampled from the policy after `step`

`load_weights` returns once every engine holds the version, so a step never samples from an older
one. With `offPolicySteps: 1` generation goes on meanwhile: tokens sampled before the change keep
the log-probabilities of the policy that sampled them. An engine that replaces a lost one is given
the newest version before it gets requests.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class SentWeights:
    """One version of the weights as the driver knows it."""

    version: int
    """The step after which the ranks held them."""
    handle: str
    """What the sender calls them."""
    node: str
    """Where the sender keeps them."""
    fetch: Callable[[], Any]
    """Returns a reference to their bytes, for engines on other nodes."""

    def data_for(self, node: str) -> Any:
        """Return what an engine on this node needs besides the handle."""
        return None if node == self.node else self.fetch()


class WeightSender(Protocol):
    """The side of a rank, in its actor's process."""

    def send(self, version: int, weights: Iterable[tuple[str, "Tensor"]]) -> str:
        """Offer a version and return its handle; every rank exhausts `weights`, a collective."""
        ...

    def data(self, handle: str) -> Any:
        """Return the bytes of a version for another node, shared by Ray without copying."""
        ...

    def close(self) -> None:
        """Free what was sent."""
        ...


class WeightReceiver(Protocol):
    """The side of an engine, in its actor's process."""

    def received(self, handle: str, data: Any) -> AbstractAsyncContextManager[str]:
        """Return the path of a file with the weights, to be read within the context."""
        ...
