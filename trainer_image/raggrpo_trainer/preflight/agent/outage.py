"""Outages of the application, or of models that it calls, which end a check."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class ServiceDown(Exception):
    """A service is down; the check must be repeated later."""


class Outage:
    """An `OutageListener` that ends the work in progress."""

    def __init__(self) -> None:
        self._down: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def mark_down(self, name: str, cause: str) -> None:
        """Record that a service is down."""
        if not self._down.done():
            self._down.set_result(f"{name} is down: {cause}")

    def mark_up(self, name: str) -> None:
        """Do nothing: the check ends with the first outage."""

    async def ending(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`. Raises ServiceDown as soon as a service is down."""
        task = asyncio.ensure_future(work)
        ends: set[asyncio.Future[Any]] = {task, self._down}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ServiceDown(self._down.result())
            return task.result()
        finally:
            task.cancel()
            await asyncio.wait({task})
