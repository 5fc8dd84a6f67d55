"""Learning rates, compared with values computed by hand."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raggrpo_api.spec.training import LearningRateSchedule, TrainingSpec
from raggrpo_trainer.policy.learning_rate import learning_rate

DECAYS = [LearningRateSchedule.LINEAR, LearningRateSchedule.COSINE]


def rates(*steps: int, **training: Any) -> list[float]:
    spec = TrainingSpec.model_validate({"learning_rate": 1.0} | training)
    return [learning_rate(spec, step) for step in steps]


def test_constant_schedule_warms_up_linearly() -> None:
    assert rates(1, 2, 4, 9, 10**6, warmup_steps=4) == [0.25, 0.5, 1.0, 1.0, 1.0]
    assert rates(1, 2) == [1.0, 1.0]


def test_linear_schedule_decays_to_floor_after_decay_steps() -> None:
    linear = rates(1, 2, 3, 4, 5, 6, learning_rate_schedule="Linear", decay_steps=4)
    assert linear == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0, 0.0])
    assert rates(1, 2, learning_rate_schedule="Linear", decay_steps=1) == [1.0, 0.0]


@pytest.mark.row("A33")
def test_cosine_schedule_is_halfway_between_peak_and_floor_at_midpoint() -> None:
    cosine = rates(1, 2, 3, 4, 5, learning_rate_schedule="Cosine", decay_steps=4)
    quarter = 0.8535533905932737  # (1 + cos 45°) / 2
    assert cosine == pytest.approx([1.0, quarter, 0.5, 1 - quarter, 0.0])


def test_learning_rate_decay_starts_after_warm_up_and_ends_at_floor() -> None:
    given = {"warmup_steps": 3, "decay_steps": 6, "min_learning_rate_ratio": 0.2}
    linear = rates(1, 2, 3, 4, 5, 6, 7, 99, learning_rate_schedule="Linear", **given)
    assert linear == pytest.approx([1 / 3, 2 / 3, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2])
    cosine = rates(3, 5, 7, 99, learning_rate_schedule="Cosine", **given)
    assert cosine == pytest.approx([1.0, 0.6, 0.2, 0.2])


@pytest.mark.parametrize("schedule", DECAYS)
@given(
    warmup=st.integers(0, 50),
    decay=st.integers(1, 60),
    floor=st.floats(0, 1),
    step=st.integers(1, 100),
)
def test_learning_rate_decay_is_bounded_and_monotonic(
    schedule: LearningRateSchedule, warmup: int, decay: int, floor: float, step: int
) -> None:
    given = {"warmup_steps": warmup, "decay_steps": decay, "min_learning_rate_ratio": floor}
    now, then = rates(step, step + 1, learning_rate_schedule=schedule, **given)
    assert 0.0 <= now <= 1.0
    if step >= max(1, warmup):
        assert floor <= then + 1e-12
        assert then <= now + 1e-12
