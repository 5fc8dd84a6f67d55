"""Probes: metrics that are too expensive, or change too slowly, to report at each step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from raggrpo_api.memory.parameters import flops_per_position
from raggrpo_api.spec.monitoring import MonitoringSpec
from raggrpo_trainer.host.host_memory import host_memory_bytes

from .step_record import StepRecord

DEVICE_METRICS = ("device_memory_bytes", "device_memory_reserved_bytes", "device_utilization")
"""Fields of StepMetrics that describe the ranks' devices."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A measurement, read every `every_steps` steps; in monitoring mode Full, after every step."""

    every_steps: int
    read: Callable[[StepRecord], Mapping[str, float]]


def host_memory_probe(monitoring: MonitoringSpec) -> Probe:
    """Measure `host_memory_bytes` of the driver's pod; report `rank_memory_bytes` of the ranks."""

    def read(record: StepRecord) -> Mapping[str, float]:
        rank_memory = record.trained.rank_memory_bytes
        return {"host_memory_bytes": host_memory_bytes(), "rank_memory_bytes": rank_memory}

    return Probe(monitoring.performance_every_steps, read)


def device_probe(monitoring: MonitoringSpec) -> Probe:
    """Report peak memory and utilization of the ranks' devices; absent on CPUs."""

    def read(record: StepRecord) -> Mapping[str, float]:
        values = {name: getattr(record.trained, name) for name in DEVICE_METRICS}
        return {name: value for name, value in values.items() if value is not None}

    return Probe(monitoring.gpu_every_steps, read)


def weight_update_probe(monitoring: MonitoringSpec) -> Probe:
    """Report `weight_update_ratio`, ‖Δw‖ / ‖w‖; absent for a step without an update."""

    def read(record: StepRecord) -> Mapping[str, float]:
        ratio = record.trained.weight_update_ratio
        return {} if ratio is None else {"weight_update_ratio": ratio}

    return Probe(monitoring.log_every_steps, read)


def flops_probe(
    monitoring: MonitoringSpec, parameters: int, trained_parameters: int, peaks: Sequence[float]
) -> Probe:
    """Report `train_tflops` over all ranks, and `mfu` if all `peaks` (TFLOP/s) are known."""
    peak_tflops = sum(peaks) if all(peaks) else 0.0
    per_position = flops_per_position(parameters, trained_parameters)

    def read(record: StepRecord) -> Mapping[str, float]:
        flops = per_position * record.trained.num_positions
        tflops = flops / max(record.seconds["train"], 1e-9) / 1e12
        return {"train_tflops": tflops} | ({"mfu": tflops / peak_tflops} if peak_tflops else {})

    return Probe(monitoring.flops_every_steps, read)
