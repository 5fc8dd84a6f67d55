"""Limit what a child process may use while it reads foreign files."""

import resource
import time
from pathlib import Path

_STATUS = Path("/proc/self/status")


def limit_resources(cpu_seconds: int, memory: int) -> None:
    """Limit the CPU time in seconds and the memory in bytes that this process may use from now on.

    SIGXCPU terminates the process after the CPU time. It writes no core file.
    """
    lines = _STATUS.read_text().splitlines() if _STATUS.exists() else []
    used = next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmData")), 0)
    seconds = int(time.process_time()) + cpu_seconds
    resource.setrlimit(resource.RLIMIT_DATA, (used + memory, used + memory))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
