"""Equal calls share one answer, in flight or answered. Knows no HTTP."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from typing import Any, Generic, TypeVar

from .background_tasks import BackgroundTasks

Key = TypeVar("Key", bound=Hashable)
T = TypeVar("T")


class SharedCalls(Generic[Key, T]):
    """Keeps the answers of the `most` calls asked for last; a failed one is made again."""

    def __init__(self, tasks: BackgroundTasks, most: int) -> None:
        self._tasks, self._most = tasks, most
        self._answers: OrderedDict[Key, asyncio.Task[T]] = OrderedDict()

    def __contains__(self, key: Key) -> bool:
        return key in self._answers

    async def get(self, key: Key, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the answer kept for the key, else that of a call made now."""
        task = self._answers.get(key)
        if task is None:
            task = self._answers[key] = self._tasks.start(call())
            task.add_done_callback(partial(self._forget_failure, key))
            if len(self._answers) > self._most:
                self._answers.popitem(last=False)
        self._answers.move_to_end(key)
        # Shielded: one who gives up must not take the answer from the others.
        return await asyncio.shield(task)

    def _forget_failure(self, key: Key, done: asyncio.Task[T]) -> None:
        failed = done.cancelled() or done.exception() is not None
        if failed and self._answers.get(key) is done:
            del self._answers[key]
