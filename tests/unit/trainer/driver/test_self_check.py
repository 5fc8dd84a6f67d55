from dataclasses import replace

import pytest

from raggrpo_api.exit_codes import ExitCode
from raggrpo_trainer.driver.self_check import Gap, check_step, gap, judge
from raggrpo_trainer.errors import TrainerError
from support.builders.reports import a_step


@pytest.mark.parametrize(
    ("precision", "found"),
    [
        ("FP32", Gap(0.05, 0.0001)),  # one token off by a twentieth of a nat
        ("BF16", Gap(0.45, 0.06)),  # a head with the wrong scale: no token far off, all a little
        ("BF16", Gap(0.6, 0.01)),
        ("FP32", Gap(float("nan"), float("nan"))),
    ],
)
def test_a_gap_beyond_the_precision_ends_the_job(precision: str, found: Gap) -> None:
    with pytest.raises(TrainerError, match=r"plain model differ by at most .* nats") as raised:
        judge(found, precision, "the plain model")
    assert raised.value.exit_code is ExitCode.POLICY_MISMATCH


@pytest.mark.parametrize(
    ("precision", "found"), [("FP32", Gap(9e-4, 5e-6)), ("BF16", Gap(0.3, 0.02))]
)
def test_rounding_is_no_gap(precision: str, found: Gap) -> None:
    judge(found, precision, "the engine")


def test_a_gap_is_taken_over_all_tokens() -> None:
    assert gap([[1.0, 2.0], [4.0]], [[1.0, 2.5], [4.25]]) == Gap(0.5, 0.25)


def test_a_step_that_is_a_nat_off_ends_the_job_and_a_smaller_one_does_not() -> None:
    metrics = a_step(7).trained
    check_step(replace(metrics, mismatch_mean=0.9), 7)
    with pytest.raises(TrainerError, match=r"1\.5 nats per token at step 7") as raised:
        check_step(replace(metrics, mismatch_mean=1.5), 7)
    assert raised.value.exit_code is ExitCode.POLICY_MISMATCH
