"""Measurements that are too dear or too slow-moving for every step (A23, A29)."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .step_record import StepRecord

CGROUP = Path("/sys/fs/cgroup")
FLOPS_PER_PARAMETER = 6
"""Of one position, forward 2 and backward 4, attention left out (Kaplan et al. 2020, 2.1)."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Numbers by name; `read` runs in the reporting thread when due, in mode Full every step."""

    every_steps: int
    read: Callable[[StepRecord], Mapping[str, float]]


def host_memory_probe(every_steps: int, cgroup: Path = CGROUP) -> Probe:
    """Measure `host_memory_bytes`: the pod's working set, else this process's own (A26)."""
    return Probe(every_steps, lambda _: {"host_memory_bytes": host_memory_bytes(cgroup)})


def device_memory_probe(every_steps: int) -> Probe:
    """Show `device_memory_bytes`: the step's peak on the rank that held most; none on CPUs."""

    def read(record: StepRecord) -> Mapping[str, float]:
        held = record.device_memory_bytes
        return {} if held is None else {"device_memory_bytes": held}

    return Probe(every_steps, read)


def flops_probe(every_steps: int, parameters: int, peaks: Sequence[float]) -> Probe:
    """Measure `train_tflops` per second of all ranks, and `mfu` where all their peaks are known."""
    peak_tflops = sum(peaks) if all(peaks) else 0.0

    def read(record: StepRecord) -> Mapping[str, float]:
        work = FLOPS_PER_PARAMETER * parameters * record.num_positions
        tflops = work / max(record.seconds["train"], 1e-9) / 1e12
        return {"train_tflops": tflops} | ({"mfu": tflops / peak_tflops} if peak_tflops else {})

    return Probe(every_steps, read)


def host_memory_bytes(cgroup: Path = CGROUP) -> int:
    """Return bytes as the kubelet counts them: what the group uses less its idle page cache."""
    current = cgroup / "memory.current"  # a machine's own root group has no such file
    if not current.exists():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    lines = (cgroup / "memory.stat").read_text().splitlines()
    idle = next(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
    return int(current.read_text()) - idle
