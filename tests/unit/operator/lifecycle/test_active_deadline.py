"""The timer of activeDeadlineSeconds."""

import math

import pytest

from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.status.restart_state import RestartState, SpentTime, WatchState
from raggrpo_operator.core.lifecycle.deadlines.active_deadline import (
    advance_timer,
    paused_at_last_observation,
    remaining_seconds,
    timeout_message,
)
from support.builders.operator.rounds import at
from support.fakes.fake_runtime import T0


@pytest.mark.parametrize(
    ("seconds", "left", "is_over"),
    [
        (0, 500.0, False),
        (499.5, 0.5, False),
        (500, 0.0, True),
        (505, 0.0, True),
        (-9, 500.0, False),
    ],
)
def test_active_deadline_is_exceeded_once_counted_time_reaches_limit(
    seconds: float, left: float, is_over: bool
) -> None:
    spent, now = SpentTime(counted_since=T0, counted_seconds=100), at(seconds)
    message = "the job exceeded activeDeadlineSeconds (600 s)"

    assert remaining_seconds(600, spent, now) == left
    assert timeout_message(600, spent, now) == (message if is_over else "")


def test_paused_active_deadline_timer_does_not_advance() -> None:
    spent = SpentTime(counted_seconds=100)

    assert remaining_seconds(600, spent, at(1e9)) == 500.0
    assert timeout_message(600, spent, at(1e9)) == ""


def test_zero_active_deadline_never_expires() -> None:
    spent = SpentTime(counted_since=T0)

    assert remaining_seconds(0, spent, at(1e9)) == math.inf
    assert timeout_message(0, spent, at(1e9)) == ""


@pytest.mark.parametrize(
    ("spent", "is_held_back", "since", "seconds"),
    [
        (SpentTime(), False, 50, 0),
        (SpentTime(), True, None, 0),
        (SpentTime(counted_seconds=30), False, 50, 30),
        (SpentTime(counted_since=at(10), counted_seconds=30), False, 10, 30),
        (SpentTime(counted_since=at(10), counted_seconds=30), True, None, 70),
        (SpentTime(counted_since=at(90), counted_seconds=30), True, None, 30),
        (SpentTime(counted_seconds=30, active_seconds=400), False, 50, 30),
        (SpentTime(active_seconds=400), False, 50, 400),
    ],
)
def test_active_deadline_timer_pauses_while_job_is_held_back(
    spent: SpentTime, is_held_back: bool, since: float | None, seconds: int
) -> None:
    advanced = advance_timer(spent, None, at(50), is_held_back=is_held_back)

    assert advanced.counted_since == (None if since is None else at(since))
    assert advanced.counted_seconds == seconds


@pytest.mark.parametrize(("running_since", "since"), [(20, 20), (None, 50)])
def test_timer_missing_from_old_status_starts_with_running_attempt(
    running_since: float | None, since: float
) -> None:
    started = None if running_since is None else at(running_since)

    advanced = advance_timer(SpentTime(), started, at(50), is_held_back=False)

    assert advanced.counted_since == at(since)


@pytest.mark.parametrize(
    ("looked", "before", "counted"),
    [(40, 100, 140), (-5, 100, 100), (None, 100, 100), (0, 0, 1), (None, 0, 1), (1, 0, 1)],
)
def test_time_of_stopped_local_run_counts_until_last_observation(
    looked: float | None, before: int, counted: int
) -> None:
    """At least one second is counted, because 0 means that the timer never ran."""
    spent = SpentTime(counted_since=T0, counted_seconds=before)
    watch = WatchState(looked=None if looked is None else at(looked))
    status = JobStatus(restart_state=RestartState(spent=spent, watch=watch))

    paused = paused_at_last_observation(status).restart_state.spent

    assert (paused.counted_since, paused.counted_seconds) == (None, counted)


def test_paused_active_deadline_timer_is_unchanged_by_second_pause() -> None:
    status = JobStatus(restart_state=RestartState(spent=SpentTime(counted_seconds=30)))

    assert paused_at_last_observation(status) == status
