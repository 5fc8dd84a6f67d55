"""Which settings are lowered after running out of memory, in which order. Restarts nothing."""

from collections.abc import Sequence
from enum import StrEnum
from typing import assert_never

from raggrpo_api.job import JobSpec
from raggrpo_api.spec.recovery import OnOutOfMemory
from raggrpo_api.spec.resources import Device
from raggrpo_api.status import Cause

MIN_UTILIZATION = 0.3
UTILIZATION_STEP = 0.1
MAX_MITIGATIONS = 16
"""The most that the status can hold."""


class Mitigation(StrEnum):
    """A recorded configuration change that saves memory without changing results."""

    MICRO_BATCH_HALVED = "MicroBatchHalved"
    GRADIENT_CHECKPOINTING = "GradientCheckpointing"
    LOWER_GPU_MEMORY_UTILIZATION = "LowerGpuMemoryUtilization"
    WORKERS_HALVED = "WorkersHalved"


_AFTER_DEVICE_OOM = (
    Mitigation.MICRO_BATCH_HALVED,
    Mitigation.GRADIENT_CHECKPOINTING,
    Mitigation.LOWER_GPU_MEMORY_UTILIZATION,
)


def next_mitigation(cause: Cause, applied: Sequence[str], spec: JobSpec) -> Mitigation | None:
    """Return the next change to try after `cause`, or None if nothing is left to try.

    `spec` is the resolved specification without mitigations. Each change is tried once, in order;
    after that the micro-batch is halved further, down to one completion of maximum length.
    """
    if spec.recovery.on_out_of_memory is not OnOutOfMemory.MITIGATE:
        return None
    if len(applied) >= MAX_MITIGATIONS:
        return None
    now = mitigated(spec, applied)
    if cause is Cause.HOST_OUT_OF_MEMORY:
        return Mitigation.WORKERS_HALVED if _helps(Mitigation.WORKERS_HALVED, now) else None
    if cause is not Cause.CUDA_OUT_OF_MEMORY:
        return None
    fresh = [step for step in _AFTER_DEVICE_OOM if step not in applied]
    for step in (*fresh, Mitigation.MICRO_BATCH_HALVED):
        if _helps(step, now):
            return step
    return None


def mitigated(spec: JobSpec, applied: Sequence[str]) -> JobSpec:
    """Return the specification with the changes applied; raises ValueError for unknown names."""
    for name in applied:
        spec = _apply(Mitigation(name), spec)
    return spec


def _helps(step: Mitigation, spec: JobSpec) -> bool:
    match step:
        case Mitigation.MICRO_BATCH_HALVED:
            longest = spec.data.max_sequence_length
            return spec.training.tokens_per_micro_batch // 2 >= longest
        case Mitigation.GRADIENT_CHECKPOINTING:
            return not spec.training.gradient_checkpointing
        case Mitigation.LOWER_GPU_MEMORY_UTILIZATION:
            on_gpu = spec.resources.device is Device.GPU
            return on_gpu and spec.rollout.gpu_memory_utilization > MIN_UTILIZATION
        case Mitigation.WORKERS_HALVED:
            return spec.data.num_workers > 1
        case _:
            assert_never(step)


def _apply(step: Mitigation, spec: JobSpec) -> JobSpec:
    training, rollout, data = spec.training, spec.rollout, spec.data
    match step:
        case Mitigation.MICRO_BATCH_HALVED:
            tokens = max(1, training.tokens_per_micro_batch // 2)
            training = training.model_copy(update={"tokens_per_micro_batch": tokens})
        case Mitigation.GRADIENT_CHECKPOINTING:
            training = training.model_copy(update={"gradient_checkpointing": True})
        case Mitigation.LOWER_GPU_MEMORY_UTILIZATION:
            lower = round(rollout.gpu_memory_utilization - UTILIZATION_STEP, 3)
            share = min(rollout.gpu_memory_utilization, max(MIN_UTILIZATION, lower))
            rollout = rollout.model_copy(update={"gpu_memory_utilization": share})
        case Mitigation.WORKERS_HALVED:
            data = data.model_copy(update={"num_workers": max(1, data.num_workers // 2)})
        case _:
            assert_never(step)
    return spec.model_copy(update={"training": training, "rollout": rollout, "data": data})
