"""Share the results of equal calls, in flight or completed. Must not depend on HTTP."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from typing import Any, Generic, TypeVar

from .background_tasks import BackgroundTasks

Key = TypeVar("Key", bound=Hashable)
T = TypeVar("T")


class SharedCalls(Generic[Key, T]):
    """An LRU cache of `max_results` calls by key; failed calls are not cached."""

    def __init__(self, tasks: BackgroundTasks, max_results: int) -> None:
        self._tasks, self._max_results = tasks, max_results
        self._calls: OrderedDict[Key, asyncio.Task[T]] = OrderedDict()

    def __contains__(self, key: Key) -> bool:
        return key in self._calls

    async def get(self, key: Key, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result for `key`; start `call` if it is neither cached nor in flight."""
        task = self._calls.get(key)
        if task is None:
            task = self._calls[key] = self._tasks.start(call())
            task.add_done_callback(partial(self._drop_failure, key))
            if len(self._calls) > self._max_results:
                self._calls.popitem(last=False)
        self._calls.move_to_end(key)
        # Shielded: canceling one caller must not cancel the call for the others.
        return await asyncio.shield(task)

    def _drop_failure(self, key: Key, done: asyncio.Task[T]) -> None:
        failed = done.cancelled() or done.exception() is not None
        if failed and self._calls.get(key) is done:
            del self._calls[key]
