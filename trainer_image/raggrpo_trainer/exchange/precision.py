"""The choice between fp32 and bf16 on a CPU, from what `precision_probe` measured."""

from dataclasses import dataclass

from raggrpo_api.exit_codes import ExitCode
from raggrpo_api.spec.training import Precision
from raggrpo_trainer.errors import TrainerError


@dataclass(frozen=True, slots=True)
class MeasuredPrecision:
    """How one layer of the model runs on a CPU in either precision."""

    faster: Precision
    bf16_works: bool
    """False if the first bf16 product kills the process."""


def chosen_precision(wanted: Precision, measured: MeasuredPrecision) -> Precision:
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
