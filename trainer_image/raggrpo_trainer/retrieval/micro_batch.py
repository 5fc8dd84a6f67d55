"""Combine queries that many coroutines submit at about the same time into a few calls."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from raggrpo_trainer.http.background_tasks import BackgroundTasks

Q = TypeVar("Q")
A = TypeVar("A")


@dataclass
class _Batch(Generic[Q]):
    queries: list[Q] = field(default_factory=list)
    full: asyncio.Event = field(default_factory=asyncio.Event)


class MicroBatcher(Generic[Q, A]):
    """Sends a batch `window_seconds` after its first query, or when it has `max_size` queries.

    `call` returns one outcome per query, in order; an exception among them is raised in the
    coroutine that submitted that query.
    """

    def __init__(
        self,
        call: Callable[[Sequence[Q]], Awaitable[Sequence[A | BaseException]]],
        tasks: BackgroundTasks,
        *,
        window_seconds: float,
        max_size: int,
    ) -> None:
        self._call = call
        self._tasks = tasks
        self._window_seconds = window_seconds
        self._max_size = max_size
        self._open: _Batch[Q] | None = None
        self._outcomes: asyncio.Task[Sequence[A | BaseException]]

    async def submit(self, query: Q) -> A:
        """Submit `query` as part of a batch and return its result."""
        if self._open is None:
            self._open = _Batch()
            self._outcomes = self._tasks.start(self._run(self._open))
        batch, outcomes = self._open, self._outcomes
        position = len(batch.queries)
        batch.queries.append(query)
        if len(batch.queries) == self._max_size:
            self._open = None
            batch.full.set()
        # Shielded: canceling one caller must not cancel the call for the others.
        outcome = (await asyncio.shield(outcomes))[position]
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def _run(self, batch: _Batch[Q]) -> Sequence[A | BaseException]:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._window_seconds):
                await batch.full.wait()
        if self._open is batch:
            self._open = None
        return await self._call(batch.queries)
