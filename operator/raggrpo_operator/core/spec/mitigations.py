"""Mitigations: changes of the configuration after running out of memory, and their order.

The kind of memory that ran out determines the mitigations, each of which saves that memory.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import assert_never

from raggrpo_api.memory.arithmetic import concurrent_sequences, ranks_per_pod
from raggrpo_api.memory.shortage import Shortage
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.spec.recovery import OnOutOfMemory
from raggrpo_api.spec.resources import Device, Placement
from raggrpo_api.status.cause import Cause

MIN_UTILIZATION = 0.3
MAX_UTILIZATION = {Placement.COLOCATED: 0.7, Placement.DISAGGREGATED: 0.9}
"""Maximum gpuMemoryUtilization, which leaves memory for ranks or, on separate GPUs, for CUDA."""
MIN_SEQUENCES = 8
"""Minimum concurrent sequences; with fewer sequences, decoding is too slow."""
UTILIZATION_STEP = 0.1
MAX_MITIGATIONS = 16
"""Maximum number of mitigations listed in status."""


class Mitigation(StrEnum):
    """A configuration change that saves memory without changing results; listed in status."""

    MICRO_BATCH_HALVED = "MicroBatchHalved"
    GRADIENT_CHECKPOINTING = "GradientCheckpointing"
    LOWER_GPU_MEMORY_UTILIZATION = "LowerGpuMemoryUtilization"
    RAISE_GPU_MEMORY_UTILIZATION = "RaiseGpuMemoryUtilization"
    ENFORCE_EAGER = "EnforceEager"
    SEQUENCES_HALVED = "SequencesHalved"
    LOAD_IN_TURNS = "LoadInTurns"
    WORKERS_HALVED = "WorkersHalved"


_STEP = (Mitigation.MICRO_BATCH_HALVED, Mitigation.GRADIENT_CHECKPOINTING)
_ORDER: Mapping[Shortage, tuple[Mitigation, ...]] = {
    Shortage.ENGINE: (Mitigation.LOWER_GPU_MEMORY_UTILIZATION, Mitigation.SEQUENCES_HALVED),
    Shortage.KV_CACHE: (
        Mitigation.RAISE_GPU_MEMORY_UTILIZATION,
        Mitigation.ENFORCE_EAGER,
        Mitigation.SEQUENCES_HALVED,
    ),
    # A reused colocated engine occupies its share while the ranks build the model.
    Shortage.TRAINING_STATE: (Mitigation.LOWER_GPU_MEMORY_UTILIZATION,),
    Shortage.STEP: _STEP,
    Shortage.HEAD_HOST: (Mitigation.WORKERS_HALVED,),
    Shortage.TRAINER_HOST: (Mitigation.LOAD_IN_TURNS, *_STEP, Mitigation.SEQUENCES_HALVED),
    Shortage.ROLLOUT_HOST: (Mitigation.SEQUENCES_HALVED,),
}
_UNKNOWN_SHORTAGE: Mapping[Cause, tuple[Mitigation, ...]] = {
    Cause.CUDA_OUT_OF_MEMORY: (*_STEP, Mitigation.LOWER_GPU_MEMORY_UTILIZATION),
    Cause.HOST_OUT_OF_MEMORY: (),
}
"""Mitigations by cause, for cases in which the memory that ran out is unknown."""
_OPPOSITE = {
    Mitigation.LOWER_GPU_MEMORY_UTILIZATION: Mitigation.RAISE_GPU_MEMORY_UTILIZATION,
    Mitigation.RAISE_GPU_MEMORY_UTILIZATION: Mitigation.LOWER_GPU_MEMORY_UTILIZATION,
}
_GPU_MITIGATIONS = frozenset({*_STEP, Mitigation.SEQUENCES_HALVED})
_REPEATABLE = frozenset(Mitigation) - {
    Mitigation.GRADIENT_CHECKPOINTING,
    Mitigation.ENFORCE_EAGER,
    Mitigation.LOAD_IN_TURNS,
}


def next_mitigation(
    cause: Cause, applied: Sequence[str], spec: JobSpec, short_of: Shortage | None = None
) -> Mitigation | None:
    """Return the next mitigation after `cause`, or None if none is left.

    `spec` is the resolved spec without mitigations. Each mitigation is applied once, in order.
    Repeatable mitigations are then applied again, in the same order.
    """
    if spec.recovery.on_out_of_memory is not OnOutOfMemory.MITIGATE:
        return None
    if len(applied) >= MAX_MITIGATIONS:
        return None
    current = apply_mitigations(spec, applied)
    if cause not in _UNKNOWN_SHORTAGE:
        return None
    order = _ORDER[short_of] if short_of is not None else _UNKNOWN_SHORTAGE[cause]
    on_gpu = spec.resources.device is Device.GPU
    if on_gpu and cause is Cause.HOST_OUT_OF_MEMORY:  # GPU settings save no host memory
        order = tuple(step for step in order if step not in _GPU_MITIGATIONS)
    # Do not revert a mitigation of another shortage: the two would alternate forever.
    order = tuple(step for step in order if _OPPOSITE.get(step) not in applied)
    unused = [step for step in order if step not in applied]
    for step in (*unused, *(step for step in order if step in _REPEATABLE)):
        if _is_applicable(step, current):
            return step
    return None


def apply_mitigations(spec: JobSpec, applied: Sequence[str]) -> JobSpec:
    """Return the spec with mitigations applied. Raises ValueError for unknown names."""
    for name in applied:
        spec = _apply(Mitigation(name), spec)
    return spec


def _is_applicable(step: Mitigation, spec: JobSpec) -> bool:
    on_gpu = spec.resources.device is Device.GPU
    match step:
        case Mitigation.MICRO_BATCH_HALVED:
            longest = spec.data.max_sequence_length
            return spec.training.tokens_per_micro_batch // 2 >= longest
        case Mitigation.GRADIENT_CHECKPOINTING:
            return not spec.training.gradient_checkpointing
        case Mitigation.LOWER_GPU_MEMORY_UTILIZATION:
            return on_gpu and spec.rollout.gpu_memory_utilization > MIN_UTILIZATION
        case Mitigation.RAISE_GPU_MEMORY_UTILIZATION:
            highest = MAX_UTILIZATION[spec.resources.placement]
            return on_gpu and spec.rollout.gpu_memory_utilization < highest
        case Mitigation.ENFORCE_EAGER:
            return on_gpu and not spec.rollout.enforce_eager
        case Mitigation.SEQUENCES_HALVED:
            return concurrent_sequences(spec.data, spec.rollout) // 2 >= MIN_SEQUENCES
        case Mitigation.LOAD_IN_TURNS:
            return ranks_per_pod(spec.resources) > 1 and not spec.training.load_in_turns
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
        case Mitigation.RAISE_GPU_MEMORY_UTILIZATION:
            higher = round(rollout.gpu_memory_utilization + UTILIZATION_STEP, 3)
            share = min(MAX_UTILIZATION[spec.resources.placement], higher)
            share = max(rollout.gpu_memory_utilization, share)
            rollout = rollout.model_copy(update={"gpu_memory_utilization": share})
        case Mitigation.ENFORCE_EAGER:
            rollout = rollout.model_copy(update={"enforce_eager": True})
        case Mitigation.SEQUENCES_HALVED:
            half = max(1, concurrent_sequences(data, rollout) // 2)
            rollout = rollout.model_copy(update={"max_num_seqs": half})
        case Mitigation.LOAD_IN_TURNS:
            training = training.model_copy(update={"load_in_turns": True})
        case Mitigation.WORKERS_HALVED:
            data = data.model_copy(update={"num_workers": max(1, data.num_workers // 2)})
        case _:
            assert_never(step)
    return spec.model_copy(update={"training": training, "rollout": rollout, "data": data})
