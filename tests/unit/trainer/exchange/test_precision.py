from pathlib import Path

import pytest

from raggrpo_api.spec.training import Precision
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.exchange.precision import MeasuredPrecision, cpu_precision, gpu_precision
from raggrpo_trainer.policy.precision_probe import clearly_faster, measure_precision
from support.builders.trainer.policies import write_model


def test_bf16_is_chosen_only_when_clearly_faster() -> None:
    assert clearly_faster(fp32_seconds=1.3, bf16_seconds=1.0) is Precision.BF16
    assert clearly_faster(fp32_seconds=1.1, bf16_seconds=1.0) is Precision.FP32
    assert clearly_faster(fp32_seconds=1.0, bf16_seconds=1.4) is Precision.FP32


def test_bf16_is_refused_where_it_would_kill() -> None:
    kills = MeasuredPrecision(Precision.FP32, bf16_works=False)
    works = MeasuredPrecision(Precision.BF16, bf16_works=True)

    assert cpu_precision(Precision.AUTO, kills) is Precision.FP32
    assert cpu_precision(Precision.BF16, works) is Precision.BF16
    with pytest.raises(TrainerError, match=r"spec.training.precision.*Auto or FP32"):
        cpu_precision(Precision.BF16, kills)


def test_measuring_survives_a_cpu_that_cannot_do_what_it_announces(tmp_path: Path) -> None:
    # Where AMX is announced but forbidden, the measuring child is killed in its first bf16 product.
    found = measure_precision(str(write_model(tmp_path)))
    assert found.bf16_works or found.faster is Precision.FP32


@pytest.mark.row("D13")
@pytest.mark.parametrize(
    ("wanted", "major", "chosen"),
    [
        (Precision.AUTO, 7, Precision.FP16),
        (Precision.AUTO, 8, Precision.BF16),
        (Precision.BF16, 9, Precision.BF16),
        (Precision.FP16, 7, Precision.FP16),
        (Precision.FP16, 9, Precision.FP16),
        (Precision.FP32, 7, Precision.FP32),
    ],
)
def test_a_gpu_computes_in_what_it_has(wanted: Precision, major: int, chosen: Precision) -> None:
    assert gpu_precision(wanted, "a GPU", major) is chosen


def test_bf16_is_refused_on_a_gpu_without_it() -> None:
    with pytest.raises(TrainerError, match=r"Tesla V100 has .* 7\.x.*FP16") as refused:
        gpu_precision(Precision.BF16, "Tesla V100", 7)
    assert refused.value.exit_code is ExitCode.CONFIG_ERROR
