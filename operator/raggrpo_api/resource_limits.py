"""Limit what a child process may use while it reads foreign files."""

import resource
import time
from pathlib import Path

_STATUS = Path("/proc/self/status")


def limit_resources(cpu_seconds: int, memory: int) -> None:
    """Limit the CPU time in seconds and the memory in bytes that this process may use from now on.

    SIGXCPU terminates the process after the CPU time. It writes no core file. A lower hard
    limit that the process has remains.
    """
    lines = _STATUS.read_text().splitlines() if _STATUS.exists() else []
    used = next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmData")), 0)
    seconds = int(time.process_time()) + cpu_seconds
    limit_memory(used + memory)
    _lower(resource.RLIMIT_CPU, seconds, seconds + 1)


def limit_memory(size: int) -> None:
    """Limit the memory of this process to `size` bytes, or to its hard limit if that is lower.

    It writes no core file.
    """
    _lower(resource.RLIMIT_DATA, size, size)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _lower(kind: int, soft: int, hard: int) -> None:
    current = resource.getrlimit(kind)[1]
    least = hard if current == resource.RLIM_INFINITY else min(hard, current)
    resource.setrlimit(kind, (min(soft, least), least))
