"""Measurements too expensive or too slow-moving to take every step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from raggrpo_trainer.host.host_memory import host_memory_bytes

from .step_record import StepRecord

FLOPS_PER_PARAMETER = 6
"""Per position: forward 2, backward 4, attention excluded (Kaplan et al. 2020, 2.1)."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A measurement; `read` runs in the reporting thread when due, or every step in mode Full."""

    every_steps: int
    read: Callable[[StepRecord], Mapping[str, float]]


def host_memory_probe(every_steps: int) -> Probe:
    """Measure `host_memory_bytes` of the driver's pod, `rank_memory_bytes` of the ranks' pods."""

    def read(record: StepRecord) -> Mapping[str, float]:
        of_ranks = record.trained.rank_memory_bytes
        return {"host_memory_bytes": host_memory_bytes(), "rank_memory_bytes": of_ranks}

    return Probe(every_steps, read)


def device_memory_probe(every_steps: int) -> Probe:
    """Report `device_memory_bytes`: the step's peak on the rank that held most; absent on CPUs."""

    def read(record: StepRecord) -> Mapping[str, float]:
        held = record.trained.device_memory_bytes
        return {} if held is None else {"device_memory_bytes": held}

    return Probe(every_steps, read)


def flops_probe(every_steps: int, parameters: int, peaks: Sequence[float]) -> Probe:
    """Measure `train_tflops` (TFLOP/s of all ranks), and `mfu` if all their peaks are known."""
    peak_tflops = sum(peaks) if all(peaks) else 0.0

    def read(record: StepRecord) -> Mapping[str, float]:
        work = FLOPS_PER_PARAMETER * parameters * record.trained.num_positions
        tflops = work / max(record.seconds["train"], 1e-9) / 1e12
        return {"train_tflops": tflops} | ({"mfu": tflops / peak_tflops} if peak_tflops else {})

    return Probe(every_steps, read)
