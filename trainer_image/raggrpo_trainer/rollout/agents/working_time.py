"""A timeout on a clock that may pause."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

POLL_SECONDS = 1.0


async def within(seconds: float, clock: Callable[[], float], work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. Raises TimeoutError after `seconds` on `clock`."""
    task = asyncio.ensure_future(work)
    deadline = clock() + seconds
    try:
        while (remaining := deadline - clock()) > 0:
            if (await asyncio.wait({task}, timeout=min(remaining, POLL_SECONDS)))[0]:
                return task.result()
        raise TimeoutError
    finally:
        task.cancel()
