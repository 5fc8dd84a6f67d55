"""Cancel work in progress on a stop signal."""

import asyncio
from typing import Any


class Stopped(Exception):
    """A stop signal arrived; everything up to the last completed step is saved."""


async def wait_or_stop(stop: asyncio.Event, task: "asyncio.Future[Any]") -> bool:
    """Wait for a task; if `stop` is set first, cancel the task and return True."""
    stopping = asyncio.ensure_future(stop.wait())
    both: set[asyncio.Future[Any]] = {task, stopping}
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if stop.is_set():
        task.cancel()
    return stop.is_set()
