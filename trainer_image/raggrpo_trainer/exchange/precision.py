"""The choice between fp32 and bf16 on a CPU, from what `precision_probe` measured."""

from dataclasses import dataclass

from raggrpo_api.memory.arithmetic import BF16_COMPUTE_MAJOR
from raggrpo_api.spec.training import Precision
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.errors import TrainerError


@dataclass(frozen=True, slots=True)
class MeasuredPrecision:
    """How one layer of the model runs on a CPU in either precision."""

    faster: Precision
    bf16_works: bool
    """False if the first bf16 product kills the process."""


def gpu_precision(wanted: Precision, name: str, compute_major: int) -> Precision:
    """Return the precision to compute in on a GPU. Raises TrainerError if it has no BF16."""
    has_bf16 = compute_major >= BF16_COMPUTE_MAJOR
    if wanted is Precision.AUTO:
        return Precision.BF16 if has_bf16 else Precision.FP16
    if wanted is Precision.BF16 and not has_bf16:
        raise TrainerError(
            ExitCode.CONFIG_ERROR,
            f"spec.training.precision: {name} has compute capability {compute_major}.x, and BF16 "
            "begins at 8.0 → training.precision: FP16 (dynamic loss scaling), or Auto",
        )
    return wanted


def cpu_precision(wanted: Precision, measured: MeasuredPrecision) -> Precision:
    """Return the precision to compute in. Raises TrainerError if BF16 would kill the ranks."""
    if wanted is Precision.AUTO:
        return measured.faster
    if wanted is Precision.BF16 and not measured.bf16_works:
        raise TrainerError(
            ExitCode.CONFIG_ERROR,
            "spec.training.precision: BF16 kills every process on this CPU, which announces "
            "instructions that it may not run → training.precision: Auto or FP32",
        )
    return wanted
