"""Share the results of equal calls, in flight or completed. Must not depend on HTTP."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from typing import Any, Generic, TypeVar

from .background_tasks import BackgroundTasks

MAX_BYTES = 256 << 20
"""Maximum memory of the results in a cache."""
Key = TypeVar("Key", bound=Hashable)
T = TypeVar("T")


class SharedCalls(Generic[Key, T]):
    """An LRU cache of `max_results` calls by key; failed calls are not cached."""

    def __init__(
        self,
        tasks: BackgroundTasks,
        max_results: int,
        size: Callable[[Key, T], int],
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """`size` returns the memory of a key and its result in bytes."""
        self._tasks, self._max_results = tasks, max_results
        self._size, self._max_bytes = size, max_bytes
        self._calls: OrderedDict[Key, asyncio.Task[T]] = OrderedDict()
        self._sizes: dict[Key, int] = {}
        """Memory of completed calls."""
        self._bytes = 0

    def __contains__(self, key: Key) -> bool:
        return key in self._calls

    async def get(self, key: Key, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result for `key`; start `call` if it is neither cached nor in flight."""
        task = self._calls.get(key)
        if task is None:
            task = self._calls[key] = self._tasks.start(call())
            task.add_done_callback(partial(self._settle, key))
            if len(self._calls) > self._max_results:
                self._drop(next(iter(self._calls)))
        self._calls.move_to_end(key)
        # Shielded: canceling one caller must not cancel the call for the others.
        return await asyncio.shield(task)

    def _settle(self, key: Key, done: asyncio.Task[T]) -> None:
        """Drop a failed call, or the oldest results that do not fit next to a new one."""
        failed = done.cancelled() or done.exception() is not None
        if self._calls.get(key) is not done:
            return
        if failed:
            self._drop(key)
            return
        self._sizes[key] = self._size(key, done.result())
        self._bytes += self._sizes[key]
        while self._bytes > self._max_bytes:
            self._drop(next(each for each in self._calls if each in self._sizes))

    def _drop(self, key: Key) -> None:
        del self._calls[key]
        self._bytes -= self._sizes.pop(key, 0)
