"""Measure the memory of calls."""

import tracemalloc
from collections.abc import Callable


def peak_memory(call: Callable[[], object]) -> int:
    """Return the peak memory in bytes that Python allocates during a call."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
