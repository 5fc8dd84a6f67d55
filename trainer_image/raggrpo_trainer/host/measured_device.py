"""Measured memory and compute capability of a rank's device."""

from dataclasses import dataclass
from pathlib import Path

from .host_memory import CGROUP

MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class MeasuredDevice:
    """A rank's device; on a CPU, the pod's memory."""

    name: str
    total_bytes: int
    free_bytes: int
    """Free memory in bytes; memory that other processes use does not count as free."""
    compute_major: int
    """Major compute capability; 0 on a CPU."""


def measure_device(kind: str) -> MeasuredDevice:
    """Measure the current device of this process; `kind` is cpu or cuda."""
    if kind == "cpu":
        limit, used = pod_memory()
        return MeasuredDevice("CPU", limit, limit - used, 0)
    import torch  # slow import, which a rank's process needs anyway

    free, total = torch.cuda.mem_get_info()
    major, _ = torch.cuda.get_device_capability()
    return MeasuredDevice(torch.cuda.get_device_name(), total, free, major)


def pod_memory(cgroup: Path = CGROUP, meminfo: Path = MEMINFO) -> tuple[int, int]:
    """Return the pod's memory limit and usage in bytes, or the machine's if there is no limit."""
    amounts = {
        line.split(":")[0]: int(line.split()[1]) * 1024
        for line in meminfo.read_text().splitlines()
        if line.endswith(" kB")
    }
    total = amounts["MemTotal"]
    used = total - amounts["MemAvailable"]
    limit = cgroup / "memory.max"  # absent in the host's root cgroup
    text = limit.read_text().strip() if limit.exists() else "max"
    if text == "max" or int(text) >= total:
        return total, used
    return int(text), int((cgroup / "memory.current").read_text())
