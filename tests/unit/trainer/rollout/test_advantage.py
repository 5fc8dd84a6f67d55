import math

import pytest

from raggrpo_trainer.rollout.advantage import group_advantages


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([1.0, 0.0, 0.0, 1.0], [0.5, -0.5, -0.5, 0.5]),
        ([3.0, 0.0, 0.0], [2.0, -1.0, -1.0]),
        ([1.0, None, 0.0], [0.5, None, -0.5]),
        ([0.1, 0.1, 0.1], [0.0, 0.0, 0.0]),
        ([0.1, None, 0.1], [0.0, None, 0.0]),
        ([1.0, None, None], [0.0, None, None]),
        ([None, None], [None, None]),
        ([5.0], [0.0]),
        ([], []),
    ],
)
def test_advantage_is_reward_minus_mean_of_valid_samples(
    rewards: list[float | None], expected: list[float | None]
) -> None:
    assert group_advantages(rewards, normalize_by_std=False) == expected


def test_normalized_advantages_are_divided_by_sample_standard_deviation() -> None:
    # mean 1, squared distances 9 + 1 + 1 + 1 = 12, variance 12 / 3 = 4; cubes would sum to 24
    result = group_advantages([4.0, None, 0.0, 0.0, 0.0], normalize_by_std=True)

    std = math.sqrt(4.0) + 1e-6
    assert result[1] is None
    valid = [advantage for advantage in result if advantage is not None]
    assert valid == pytest.approx([3.0 / std] + [-1.0 / std] * 3, rel=1e-9)


def test_advantages_are_exactly_zero_for_equal_rewards() -> None:
    assert group_advantages([0.1] * 3, normalize_by_std=True) == [0.0, 0.0, 0.0]


def test_failed_sample_does_not_change_group_mean() -> None:
    with_failure = group_advantages([1.0, 0.25, None], normalize_by_std=False)
    assert with_failure[:2] == group_advantages([1.0, 0.25], normalize_by_std=False)
