import pytest

from bench.training.quickstart_learning import curve, has_learned, row, standard_error

SUMMARY = {
    "rewardFirst": 0.096,
    "rewardLast": 0.818,
    "exactMatchBefore": 0.34,
    "exactMatchAfter": 0.711,
    "exactMatchControl": 0.004,
}


def test_small_accuracy_gain_does_not_count_as_learning() -> None:
    assert has_learned(SUMMARY)
    assert not has_learned(SUMMARY | {"exactMatchAfter": 0.43})


def test_correct_answers_without_passages_do_not_count_as_learning() -> None:
    assert not has_learned(SUMMARY | {"exactMatchControl": 0.1})


def test_standard_error_of_accuracy_gain_combines_both_measurements() -> None:
    assert standard_error([0.5]) == pytest.approx(0.03125)
    assert standard_error([0.5, 0.5]) == pytest.approx(0.03125 * 2**0.5)
    assert "| 37.1 ± 4.1 % |" in row(0, SUMMARY, seconds=90.0)


def test_learning_curve_averages_reward_per_window() -> None:
    assert curve([{"reward_mean": float(step >= 32)} for step in range(48)]) == [0.0, 1.0]
