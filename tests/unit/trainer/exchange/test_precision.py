from pathlib import Path

import pytest

from raggrpo_api.spec.training import Precision
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.exchange.precision import MeasuredPrecision, cpu_precision, gpu_precision
from raggrpo_trainer.policy.precision_probe import measure_precision, preferred_precision
from support.builders.trainer.policies import write_model


def test_bf16_is_selected_on_cpu_when_clearly_faster() -> None:
    assert preferred_precision(fp32_seconds=1.3, bf16_seconds=1.0) is Precision.BF16
    assert preferred_precision(fp32_seconds=1.1, bf16_seconds=1.0) is Precision.FP32
    assert preferred_precision(fp32_seconds=1.0, bf16_seconds=1.4) is Precision.FP32


def test_bf16_is_rejected_on_cpu_that_raises_illegal_instruction() -> None:
    kills = MeasuredPrecision(Precision.FP32, bf16_works=False)
    works = MeasuredPrecision(Precision.BF16, bf16_works=True)

    assert cpu_precision(Precision.AUTO, kills) is Precision.FP32
    assert cpu_precision(Precision.BF16, works) is Precision.BF16
    with pytest.raises(TrainerError, match=r"spec.training.precision.*Auto or FP32"):
        cpu_precision(Precision.BF16, kills)


def test_precision_measurement_survives_illegal_instruction(tmp_path: Path) -> None:
    # If AMX is advertised but forbidden, the child process is killed in its first BF16 product.
    measured = measure_precision(str(write_model(tmp_path)))
    assert measured.bf16_works or measured.faster is Precision.FP32


@pytest.mark.row("D13")
@pytest.mark.parametrize(
    ("specified", "major", "expected"),
    [
        (Precision.AUTO, 7, Precision.FP16),
        (Precision.AUTO, 8, Precision.BF16),
        (Precision.BF16, 9, Precision.BF16),
        (Precision.FP16, 7, Precision.FP16),
        (Precision.FP16, 9, Precision.FP16),
        (Precision.FP32, 7, Precision.FP32),
    ],
)
def test_gpu_precision_follows_compute_capability(
    specified: Precision, major: int, expected: Precision
) -> None:
    assert gpu_precision(specified, "a GPU", major) is expected


def test_bf16_is_rejected_on_gpu_without_support() -> None:
    with pytest.raises(TrainerError, match=r"Tesla V100 has .* 7\.x.*FP16") as raised:
        gpu_precision(Precision.BF16, "Tesla V100", 7)
    assert raised.value.exit_code is ExitCode.CONFIG_ERROR
