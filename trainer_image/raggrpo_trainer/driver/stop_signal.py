"""Ending on a signal: what is waited for meanwhile is given up."""

import asyncio
from typing import Any


class Stopped(Exception):
    """A signal to end arrived; everything up to the last finished step has been saved."""


async def stopped_before(stop: asyncio.Event, task: "asyncio.Future[Any]") -> bool:
    """Wait for a task or a stop signal; return whether the signal came and ended the task."""
    stopping = asyncio.ensure_future(stop.wait())
    both: set[asyncio.Future[Any]] = {task, stopping}
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if stop.is_set():
        task.cancel()
    return stop.is_set()
