"""`AgentRunner`: interface to the application; `AgentUnavailable`: a run must be repeated."""

from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol

from raggrpo_trainer.call_failures import CallFailed

SOURCE: Final = "agent"
"""`SampleFailed.source` of failures of the application."""


class AgentUnavailable(Exception):
    """The application was down during a run, and is up again: the run must be repeated."""

    def __init__(self, failure: CallFailed) -> None:
        """Store the failure of a run that is not repeated any more."""
        super().__init__(str(failure))
        self.failure = failure


class AgentSlot(Protocol):
    """A place in which the application runs for one sample at a time."""

    key: str
    """Key by which the gateway recognizes the calls of the sample."""
    base_url: str
    """The gateway's URL, as the application reaches it."""

    async def run(self, request: Any) -> Any:
        """Return the result of the application. Raises CallFailed or AgentUnavailable."""
        ...


class AgentRunner(Protocol):
    """Runs an application."""

    def slot(self) -> AbstractAsyncContextManager[AgentSlot]:
        """Wait for a free slot and yield it.

        If the block raises, the application may still work on the sample, so its slot is not used
        again.
        """
        ...

    async def close(self) -> None:
        """Stop everything that the runner has started."""
        ...
