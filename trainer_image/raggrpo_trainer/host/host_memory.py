"""Memory usage of the pod of this process."""

import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def host_memory_bytes(cgroup: Path = CGROUP) -> int:
    """Return the pod's working set in bytes, without inactive page cache, as the kubelet does.

    Outside a container, return the resident memory of this process.
    """
    current = cgroup / "memory.current"  # absent in the host's root cgroup
    if not current.exists():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    lines = (cgroup / "memory.stat").read_text().splitlines()
    inactive = next(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
    return int(current.read_text()) - inactive
