"""The clock of activeDeadlineSeconds: when it runs, stands still, and what it says."""

import math

import pytest

from raggrpo_api.status.attempts import AttemptRecord
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.status.restart_state import RestartState, SpentTime, WatchState
from raggrpo_operator.core.lifecycle.deadlines.active_deadline import (
    exceeded,
    paused_at_last_observation,
    run_clock,
    seconds_left,
)
from raggrpo_operator.core.lifecycle.observed import Observed
from raggrpo_operator.core.lifecycle.round import Round
from raggrpo_operator.core.spec.resolve import resolve
from support.builders.operator.rounds import at
from support.fakes.fake_runtime import T0, make_scenario_job


def make_round(
    seconds: float, spent: SpentTime, limit: int = 600, record: AttemptRecord | None = None
) -> Round:
    attempts = [record] if record is not None else []
    status = JobStatus(restart_state=RestartState(spent=spent), attempts=attempts)
    job = make_scenario_job({"activeDeadlineSeconds": limit} if limit else {})
    return Round(job, Observed(), at(seconds), status, resolve(job))


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
def test_a_job_may_go_on_until_its_limit_is_used_up(
    seconds: float, left: float, is_over: bool
) -> None:
    this = make_round(seconds, SpentTime(counted_since=T0, counted_seconds=100))

    assert seconds_left(this) == left
    assert exceeded(this) == ("activeDeadlineSeconds 600 is over" if is_over else "")


def test_a_clock_that_stands_still_uses_nothing_up() -> None:
    this = make_round(1e9, SpentTime(counted_seconds=100))

    assert (seconds_left(this), exceeded(this)) == (500.0, "")


def test_without_a_limit_a_job_may_go_on_for_ever() -> None:
    this = make_round(1e9, SpentTime(counted_since=T0), limit=0)

    assert (seconds_left(this), exceeded(this)) == (math.inf, "")


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
def test_the_clock_runs_unless_the_job_is_held_back(
    spent: SpentTime, is_held_back: bool, since: float | None, seconds: int
) -> None:
    this = make_round(50, spent)

    run_clock(this, is_held_back=is_held_back)

    found = this.state.spent
    assert found.counted_since == (None if since is None else at(since))
    assert found.counted_seconds == seconds


@pytest.mark.parametrize(
    ("cause", "started", "since"),
    [(None, 20, 20), (None, None, 50), (Cause.PROGRAM_ERROR, 20, 50)],
)
def test_a_clock_that_an_earlier_release_did_not_have_begins_with_the_running_attempt(
    cause: Cause | None, started: float | None, since: float
) -> None:
    began = None if started is None else at(started)
    this = make_round(50, SpentTime(), record=AttemptRecord(number=1, cause=cause, started=began))

    run_clock(this, is_held_back=False)

    assert this.state.spent.counted_since == at(since)


@pytest.mark.parametrize(
    ("looked", "before", "counted"),
    [(40, 100, 140), (-5, 100, 100), (None, 100, 100), (0, 0, 1), (None, 0, 1), (1, 0, 1)],
)
def test_a_run_that_ended_with_its_machine_counts_until_it_was_last_seen(
    looked: float | None, before: int, counted: int
) -> None:
    """One second at least: none would mean that the clock never ran."""
    spent = SpentTime(counted_since=T0, counted_seconds=before)
    watch = WatchState(looked=None if looked is None else at(looked))
    status = JobStatus(restart_state=RestartState(spent=spent, watch=watch))

    found = paused_at_last_observation(status).restart_state.spent

    assert (found.counted_since, found.counted_seconds) == (None, counted)


def test_a_clock_that_stands_still_is_left_as_it_is() -> None:
    status = JobStatus(restart_state=RestartState(spent=SpentTime(counted_seconds=30)))

    assert paused_at_last_observation(status) == status
