"""`Replacing`: whether and how long engines are being replaced."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Replacing:
    """Lets engines be replaced one at a time, and measures the time that it takes."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._since: float | None = None
        self._seconds = 0.0

    @property
    def seconds(self) -> float:
        """Total seconds during which an engine was being replaced."""
        return self._seconds + (0.0 if self._since is None else time.monotonic() - self._since)

    @asynccontextmanager
    async def one_at_a_time(self) -> AsyncIterator[None]:
        """Wait for other replacements; the block replaces an engine."""
        async with self._lock:
            self._since = time.monotonic()
            try:
                yield
            finally:
                self._seconds, self._since = self.seconds, None

    async def wait(self) -> None:
        """Wait until no engine is being replaced."""
        async with self._lock:
            pass
