"""What memory a rank's device really has, and whether it computes in BF16."""

from dataclasses import dataclass
from pathlib import Path

from .host_memory import CGROUP

MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class MeasuredDevice:
    """One rank's device; on a CPU, the pod's memory."""

    name: str
    total_bytes: int
    free_bytes: int
    """As the driver says: other processes' memory is not free."""
    compute_major: int
    """Major compute capability; 0 on a CPU."""


def measure_device(kind: str) -> MeasuredDevice:
    """Return what the device of this process (cpu or cuda) has right now."""
    if kind == "cpu":
        limit, used = pod_memory()
        return MeasuredDevice("CPU", limit, limit - used, 0)
    import torch  # slow to import; a rank's process needs it anyway

    free, total = torch.cuda.mem_get_info()
    major, _ = torch.cuda.get_device_capability()
    return MeasuredDevice(torch.cuda.get_device_name(), total, free, major)


def pod_memory(cgroup: Path = CGROUP, meminfo: Path = MEMINFO) -> tuple[int, int]:
    """Return the pod's limit and what it uses, in bytes; without a limit, the machine's."""
    amounts = {
        line.split(":")[0]: int(line.split()[1]) * 1024
        for line in meminfo.read_text().splitlines()
        if line.endswith(" kB")
    }
    total, used = amounts["MemTotal"], amounts["MemTotal"] - amounts["MemAvailable"]
    limit = cgroup / "memory.max"  # absent in the host's root cgroup
    text = limit.read_text().strip() if limit.exists() else "max"
    if text == "max" or int(text) >= total:
        return total, used
    return int(text), int((cgroup / "memory.current").read_text())
