"""Choose the precision by compute capability (GPU) or by measurement (CPU)."""

from dataclasses import dataclass

from raggrpo_api.memory.arithmetic import BF16_COMPUTE_MAJOR
from raggrpo_api.spec.training import Precision
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.errors import TrainerError


@dataclass(frozen=True, slots=True)
class MeasuredPrecision:
    """Result of `policy.precision_probe` on a CPU."""

    faster: Precision
    bf16_works: bool
    """False if a BF16 matrix product kills the process."""


def gpu_precision(specified: Precision, name: str, compute_major: int) -> Precision:
    """Return the precision for a GPU.

    Raises TrainerError CONFIG_ERROR if BF16 is specified and the GPU does not support it.
    """
    has_bf16 = compute_major >= BF16_COMPUTE_MAJOR
    if specified is Precision.AUTO:
        return Precision.BF16 if has_bf16 else Precision.FP16
    if specified is Precision.BF16 and not has_bf16:
        raise TrainerError(
            ExitCode.CONFIG_ERROR,
            f"spec.training.precision: {name} has compute capability {compute_major}.x, but BF16 "
            "needs 8.0 or later; set training.precision to FP16 (dynamic loss scaling) or Auto",
        )
    return specified


def cpu_precision(specified: Precision, measured: MeasuredPrecision) -> Precision:
    """Return the precision for a CPU.

    Raises TrainerError CONFIG_ERROR if BF16 is specified and would kill the ranks.
    """
    if specified is Precision.AUTO:
        return measured.faster
    if specified is Precision.BF16 and not measured.bf16_works:
        raise TrainerError(
            ExitCode.CONFIG_ERROR,
            "spec.training.precision: BF16 crashes on this CPU, which advertises instructions "
            "that it cannot execute; set training.precision to Auto or FP32",
        )
    return specified
