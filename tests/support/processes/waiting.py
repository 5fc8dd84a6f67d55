"""Waiting for other processes, with a deadline."""

import time
from collections.abc import Callable


def wait_for(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    """Return once the condition is true; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition was not true in time"
        time.sleep(0.02)
