"""Calls of a trajectory: a client's retry joins the call that it repeats."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from .protocol import RequestRejected
from .responses import Reply
from .trajectory import Trajectory
from .working_time import Timer

T = TypeVar("T")
IsConnected = Callable[[], bool]
"""Returns whether a client still waits for its response."""


@dataclass(slots=True, eq=False)
class Call:
    """A requested completion and the clients that wait for it."""

    digest: bytes
    """Hash of path and body of the request."""
    reply: asyncio.Task[Reply]
    clients: list[IsConnected] = field(default_factory=list)
    is_delivered: bool = False
    """Whether a client has received the response."""

    @property
    def is_abandoned(self) -> bool:
        """Whether no client has received or waits for the response."""
        return not self.is_delivered and not any(is_connected() for is_connected in self.clients)


@dataclass(slots=True)
class Session:
    """A trajectory whose application may call."""

    trajectory: Trajectory
    timer: Timer
    """Time that remains for the run of the application."""
    error: Exception | None = None
    """The error of a call for which the application is not responsible."""
    is_closed: bool = False
    """Whether the trajectory has ended and accepts no calls."""
    _calls: list[Call] = field(default_factory=list)
    _others: set[asyncio.Task[Any]] = field(default_factory=set)

    def require_open(self) -> None:
        """Raise RequestRejected if the trajectory has ended."""
        if self.is_closed:
            raise _ended()

    def join(
        self,
        digest: bytes,
        is_connected: IsConnected,
        is_retry: bool,
        start: Callable[[], Coroutine[Any, Any, Reply]],
    ) -> Call:
        """Return the call that a request repeats, or start one.

        A second completion of a retried request would be a turn that the application never uses.
        Libraries also retry without marking the request (`is_retry`); the client of the first
        request has then gone. Equal requests of connected clients are separate calls.

        Raises RequestRejected if the trajectory has ended.
        """
        self.require_open()
        equal = [call for call in self._calls if call.digest == digest]
        abandoned = [call for call in equal if call.is_abandoned]
        if repeated := abandoned or (equal[-1:] if is_retry else []):
            call = repeated[0]
            self.trajectory.note("joined retries")
        else:
            call = Call(digest, asyncio.create_task(start()))
            self._calls.append(call)
        call.clients.append(is_connected)
        return call

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of work that ends with the trajectory or with its caller.

        Raises RequestRejected if the trajectory ends or has ended.
        """
        if self.is_closed:
            work.close()
            raise _ended()
        task = asyncio.create_task(work)
        self._others.add(task)
        try:
            await asyncio.wait({task})
        finally:
            self._others.discard(task)
            task.cancel()
        return result_of(task)

    async def close(self) -> None:
        """Cancel the calls in flight and reject later ones."""
        self.is_closed = True
        self.trajectory.is_abandoned = any(call.is_abandoned for call in self._calls)
        tasks = [*(call.reply for call in self._calls), *self._others]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def result_of(task: "asyncio.Task[T]") -> T:
    """Return the result of a finished task. Raises RequestRejected if its trajectory has ended."""
    if task.cancelled():
        raise _ended()
    return task.result()


def _ended() -> RequestRejected:
    return RequestRejected(410, "the trajectory has ended")
