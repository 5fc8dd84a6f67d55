import pytest

from bench.training.quickstart_learning import curve, learnt, row, standard_error

SUMMARY = {
    "rewardFirst": 0.096,
    "rewardLast": 0.818,
    "exactMatchBefore": 0.34,
    "exactMatchAfter": 0.711,
    "exactMatchControl": 0.004,
}


def test_a_rise_of_a_few_points_is_too_little() -> None:
    assert learnt(SUMMARY)
    assert not learnt(SUMMARY | {"exactMatchAfter": 0.43})


def test_who_answers_without_the_right_passages_has_not_learnt_to_read() -> None:
    assert not learnt(SUMMARY | {"exactMatchControl": 0.1})


def test_a_rise_is_as_uncertain_as_both_its_ends() -> None:
    assert standard_error([0.5]) == pytest.approx(0.03125)
    assert standard_error([0.5, 0.5]) == pytest.approx(0.03125 * 2**0.5)
    assert "| 37.1 ± 4.1 % |" in row(0, SUMMARY, seconds=90.0)


def test_a_curve_is_the_mean_reward_of_one_window_after_the_other() -> None:
    assert curve([{"reward_mean": float(step >= 32)} for step in range(48)]) == [0.0, 1.0]
