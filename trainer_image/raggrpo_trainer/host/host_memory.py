"""What this process's pod uses of its memory."""

import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def host_memory_bytes(cgroup: Path = CGROUP) -> int:
    """Return bytes as the kubelet counts them: what the group uses less its idle page cache.

    Outside a container it is the calling process's own resident memory.
    """
    current = cgroup / "memory.current"  # a machine's own root group has no such file
    if not current.exists():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    lines = (cgroup / "memory.stat").read_text().splitlines()
    idle = next(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
    return int(current.read_text()) - idle
