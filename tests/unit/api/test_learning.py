"""Signs in the step history that a run learns nothing."""

from collections.abc import Iterable
from typing import Any

import pytest

from raggrpo_api.trainer.learning import (
    NotLearningReason,
    Streak,
    extended,
    not_learning,
    not_learning_message,
    streaks_of,
    window_steps,
)

HEALTHY = {"zero_reward": 0.5, "zero_variance": 0.4, "truncated": 0.1, "parsed": 0.9}
WINDOW = 4
Why = NotLearningReason


def verdict(steps: Iterable[dict[str, Any]], window: int = WINDOW) -> tuple[str, int, float] | None:
    """Return reason, first step and share for steps that differ from HEALTHY."""
    history = [{"step": number} | HEALTHY | each for number, each in enumerate(steps, 1)]
    streak = not_learning(streaks_of(history), len(history), window)
    return None if streak is None else (streak.reason, streak.since, round(streak.share, 4))


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ({}, None),
        ({"zero_reward": 1.0, "zero_variance": 1.0}, (Why.NO_REWARD_SIGNAL, 1, 1.0)),
        ({"zero_variance": 1.0}, (Why.ZERO_VARIANCE, 1, 1.0)),
        ({"truncated": 1.0}, (Why.ALL_TRUNCATED, 1, 1.0)),
        ({"parsed": 0.0}, (Why.NOTHING_PARSES, 1, 1.0)),
        ({"truncated": 0.98}, (Why.ALL_TRUNCATED, 1, 0.98)),
        ({"truncated": 0.89}, None),
        ({"parsed": 0.03}, (Why.NOTHING_PARSES, 1, 0.97)),
        ({"parsed": 0.11}, None),
        ({"zero_reward": 0.99, "zero_variance": 0.99}, None),
        (
            {"truncated": 1.0, "parsed": 0.0, "zero_reward": 1.0, "zero_variance": 1.0},
            (Why.ALL_TRUNCATED, 1, 1.0),
        ),
        (
            {"parsed": 0.0, "zero_reward": 1.0, "zero_variance": 1.0},
            (Why.NOTHING_PARSES, 1, 1.0),
        ),
        ({"truncated": None, "parsed": None}, None),
    ],
)
def test_sign_in_each_step_of_window_means_not_learning(
    step: dict[str, Any], expected: tuple[str, int, float] | None
) -> None:
    assert verdict([step] * WINDOW) == expected
    assert verdict([step] * (WINDOW - 1)) is None


def test_streak_starts_after_last_step_without_sign() -> None:
    zero = {"zero_variance": 1.0}
    assert verdict([zero, {}, zero, zero, zero, zero]) == (Why.ZERO_VARIANCE, 3, 1.0)
    assert verdict([zero, zero, zero, zero, {}]) is None
    assert verdict([zero, zero, zero, zero, {}, zero, zero, zero]) is None


def test_share_is_mean_over_streak() -> None:
    steps = [{"truncated": share} for share in (0.9, 1.0, 1.0, 0.98)]
    assert verdict(steps) == (Why.ALL_TRUNCATED, 1, 0.97)


def test_alternating_constant_rewards_are_zero_variance() -> None:
    zeros, ones = {"zero_reward": 1.0, "zero_variance": 1.0}, {"zero_variance": 1.0}
    assert verdict([zeros, ones, zeros, ones]) == (Why.ZERO_VARIANCE, 1, 1.0)


def test_history_of_earlier_release_has_no_signs() -> None:
    record = {"step": 1, "zero_variance": 0.5, "reward_mean": 0.0}
    assert streaks_of([record]) == []


def test_step_extends_streaks_of_earlier_attempt() -> None:
    earlier = streaks_of([{"step": step, "zero_variance": 1.0} for step in range(1, 6)])

    [streak] = extended(earlier, 6, {"zero_variance": 1.0}, {Why.ZERO_VARIANCE: "sample 1/0"})

    assert (streak.since, streak.share, streak.example) == (1, 1.0, "sample 1/0")


@pytest.mark.parametrize(("total_steps", "expected"), [(3, 3), (20, 20), (400, 20)])
def test_window_is_at_most_whole_run(total_steps: int, expected: int) -> None:
    assert window_steps(20, total_steps) == expected


def test_unknown_reason_of_later_release_is_ignored() -> None:
    streak = Streak(reason="FromLaterRelease", since=1, share=1.0)
    assert not_learning([streak], 100, WINDOW) is None


@pytest.mark.parametrize("reason", list(Why))
def test_message_has_share_first_step_and_example(reason: Why) -> None:
    streak = Streak(reason=reason, since=7, share=0.9997, example="sample 1/0: 'x'")

    text = not_learning_message(streak)

    assert text.startswith("99.9 % of ")
    assert " since step 7: " in text
    assert text.endswith("; example: sample 1/0: 'x'")


def test_message_without_example_ends_with_remedy() -> None:
    text = not_learning_message(Streak(reason=Why.ALL_TRUNCATED, since=1, share=1.0))
    assert text.startswith("100 % of completions are cut at data.maxResponseLength since step 1: ")
    assert text.endswith("(eos_token)")
