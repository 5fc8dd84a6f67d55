"""Observed time: when an observation is recorded, and which time counts."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from raggrpo_api.status.restart_state import WatchState
from raggrpo_operator.core.state.observed_time import elapsed, record_observation
from support.builders.operator.rounds import at
from support.fakes.fake_runtime import T0

HOUR = timedelta(hours=1)
WATCH = WatchState(looked=T0, watched_since=T0 - HOUR)


@pytest.mark.parametrize("seconds", [0.0, 0.5, 29.9])
def test_observation_within_interval_is_not_recorded(seconds: float) -> None:
    assert record_observation(WATCH, at(seconds)) == WATCH


@pytest.mark.parametrize(("seconds", "delay"), [(30.0, 0.0), (150.0, 0.0), (160.0, 10.0)])
def test_observation_after_interval_is_recorded(seconds: float, delay: float) -> None:
    assert record_observation(WATCH, at(seconds), delay) == replace(WATCH, looked=at(seconds))


@pytest.mark.parametrize(("seconds", "delay"), [(150.1, 0.0), (160.1, 10.0), (-0.1, 0.0)])
def test_deadlines_restart_after_observation_gap_or_backward_clock_jump(
    seconds: float, delay: float
) -> None:
    now = at(seconds)
    assert record_observation(WATCH, now, delay) == replace(WATCH, looked=now, watched_since=now)


def test_reconcile_delay_defaults_to_zero() -> None:
    assert record_observation(WATCH, at(150.0)).watched_since == WATCH.watched_since
    assert record_observation(WATCH, at(150.5)).watched_since != WATCH.watched_since


def test_first_observation_starts_deadlines() -> None:
    assert record_observation(WatchState(), T0) == WatchState(looked=T0, watched_since=T0)


@pytest.mark.parametrize(
    ("since", "watched", "seconds"),
    [
        pytest.param(None, None, 0.0, id="no start"),
        pytest.param(at(-9), None, 9.0, id="no observation"),
        pytest.param(at(-9), at(-20), 9.0, id="fully observed"),
        pytest.param(at(-20), at(-9), 9.0, id="observed later"),
        pytest.param(T0, at(-9), 0.0, id="starts now"),
        pytest.param(at(0.5), None, 0.0, id="starts in the future"),
        pytest.param(at(60), at(-9), 9.0, id="the clock was set back"),
    ],
)
def test_elapsed_time_counts_observed_time_only(
    since: datetime | None, watched: datetime | None, seconds: float
) -> None:
    assert elapsed(since, WatchState(watched_since=watched), T0) == seconds
