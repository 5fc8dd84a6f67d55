"""Limit what this process may allocate while a library reads foreign content. Linux only."""

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MEMORY = Path("/proc/self/statm")
_DATA_PAGES = 5
"""Index of the pages of private memory in `statm`."""
_lock = threading.RLock()
"""Another thread would read the lower limit and restore it at its end."""


@contextmanager
def limited_memory(size: int) -> Iterator[None]:
    """Let this process allocate at most `size` bytes more, if the system is Linux.

    Python raises MemoryError beyond that, and other libraries their own errors. One thread at a
    time runs such a block. Processes started meanwhile inherit the soft limit.
    """
    if not _MEMORY.exists():
        yield
        return
    with _lock:
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        used = int(_MEMORY.read_text().split()[_DATA_PAGES]) * os.sysconf("SC_PAGE_SIZE")
        limits = [each for each in (soft, hard) if each != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_DATA, (min([used + size, *limits]), hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
