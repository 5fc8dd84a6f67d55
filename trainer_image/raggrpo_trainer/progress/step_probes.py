"""Measurements too expensive or too slow-moving to take every step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from raggrpo_trainer.host.host_memory import host_memory_bytes

from .step_record import StepRecord

FLOPS_PER_PARAMETER = 6
"""Per position: 2 forward, 4 backward, without attention (Kaplan et al. 2020, 2.1)."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A measurement, read by the reporting thread when due; in mode Full, every step."""

    every_steps: int
    read: Callable[[StepRecord], Mapping[str, float]]


def host_memory_probe(every_steps: int) -> Probe:
    """Measure `host_memory_bytes` in the driver's pod and `rank_memory_bytes` in the ranks'."""

    def read(record: StepRecord) -> Mapping[str, float]:
        of_ranks = record.trained.rank_memory_bytes
        return {"host_memory_bytes": host_memory_bytes(), "rank_memory_bytes": of_ranks}

    return Probe(every_steps, read)


def device_memory_probe(every_steps: int) -> Probe:
    """Report `device_memory_bytes`, the step's peak over all ranks; absent on CPUs."""

    def read(record: StepRecord) -> Mapping[str, float]:
        held = record.trained.device_memory_bytes
        return {} if held is None else {"device_memory_bytes": held}

    return Probe(every_steps, read)


def weight_update_probe(every_steps: int) -> Probe:
    """Report `weight_update_ratio`, ‖Δw‖ / ‖w‖; absent of a step without an update."""

    def read(record: StepRecord) -> Mapping[str, float]:
        ratio = record.trained.weight_update_ratio
        return {} if ratio is None else {"weight_update_ratio": ratio}

    return Probe(every_steps, read)


def flops_probe(every_steps: int, parameters: int, peaks: Sequence[float]) -> Probe:
    """Measure `train_tflops` (TFLOP/s over all ranks), and `mfu` if all peaks are known."""
    peak_tflops = sum(peaks) if all(peaks) else 0.0

    def read(record: StepRecord) -> Mapping[str, float]:
        work = FLOPS_PER_PARAMETER * parameters * record.trained.num_positions
        tflops = work / max(record.seconds["train"], 1e-9) / 1e12
        return {"train_tflops": tflops} | ({"mfu": tflops / peak_tflops} if peak_tflops else {})

    return Probe(every_steps, read)
