"""Compare the job's memory needs with the memory that the ranks measured, before engines start.

The operator's rules use the same formulas with values from node labels and the spec. Must not
measure memory itself.
"""

from collections.abc import Sequence

from raggrpo_api.memory import gpu as gpu_memory
from raggrpo_api.memory.arithmetic import GIB, MIB, ranks_per_pod
from raggrpo_api.memory.parameters import trained_parameters
from raggrpo_api.spec.resources import Device
from raggrpo_api.spec.training import Precision
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.host.measured_device import MeasuredDevice


def check_memory(
    config: TrainerConfig, precision: Precision, devices: Sequence[MeasuredDevice]
) -> str:
    """Check the measured memory and return it as text for the log.

    Raises TrainerError CONFIG_ERROR if the memory is too small. The check is skipped if the model's
    size is unknown.
    """
    smallest = min(devices, key=lambda device: device.total_bytes)
    measured = (
        f"{smallest.name} with {_gib(smallest.total_bytes)}, {_gib(smallest.free_bytes)} free"
    )
    if not config.facts.parameters:
        return f"{measured}; the memory is not checked because the model's size is unknown"
    training = config.training.model_copy(update={"precision": precision})
    config = config.model_copy(update={"training": training})
    if config.resources.device is Device.CPU:
        _check_host(config, smallest)
    else:
        _check_device(config, smallest)
    return measured


def _check_host(config: TrainerConfig, pod: MeasuredDevice) -> None:
    state = ranks_per_pod(config.resources) * gpu_memory.training_state(config, config.facts)
    if state > pod.total_bytes:
        raise TrainerError(
            ExitCode.CONFIG_ERROR,
            f"training needs {_gib(state)} per pod ({config.facts.parameters:,} parameters; "
            f"weights, gradients and AdamW's moments of "
            f"{trained_parameters(config.training, config.facts):,} in fp32), but a pod has "
            f"{_gib(pod.total_bytes)}; increase resources.memory or resources.nodes",
        )


def _check_device(config: TrainerConfig, device: MeasuredDevice) -> None:
    # The measured memory takes precedence over the specified one.
    resources = config.resources.model_copy(update={"gpu_memory_gib": 0})
    facts = config.facts.model_copy(update={"gpu_memory_mib": device.total_bytes // MIB})
    config = config.model_copy(update={"resources": resources})
    if (short := gpu_memory.training_state_excess(config, facts)) > 0:
        raise TrainerError(
            ExitCode.CONFIG_ERROR,
            f"{device.name} with {_gib(device.total_bytes)} is {_gib(short)} short: training "
            f"needs {_gib(gpu_memory.training_state(config, facts))} per GPU, but "
            f"{_gib(max(0, gpu_memory.training_room(config, facts)))} remain after the engine, "
            "weight transfer and fragmentation; use more GPUs or lower "
            "rollout.gpuMemoryUtilization",
        )
    if (short := gpu_memory.engine_excess(config, facts)) > 0:
        raise TrainerError(
            ExitCode.CONFIG_ERROR,
            f"{device.name} with {_gib(device.total_bytes)} is {_gib(short)} short: the engine's "
            f"share of {_gib(gpu_memory.engine_share(config, facts))} must hold weights of "
            f"{_gib(gpu_memory.engine_weights(config, facts))}, CUDA graphs and the KV cache of "
            "one sequence; increase rollout.gpuMemoryUtilization, or disaggregate the "
            "engines and increase rollout.tensorParallelSize",
        )


def _gib(amount: int) -> str:
    return f"{amount / GIB:.1f} GiB"
