"""An event loop whose clock jumps to the next timer, so that waiting takes no real time.

For coroutines that wait only for each other and for timers.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.DefaultSelector):
    """Selector that advances the clock instead of waiting for I/O."""

    passed = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "deadlock: all coroutines wait"
        self.passed += max(0.0, timeout)
        return super().select(0)


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Event loop whose time starts at 0 (seconds)."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.passed


def run_simulated(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on simulated time and return its result."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(work)
