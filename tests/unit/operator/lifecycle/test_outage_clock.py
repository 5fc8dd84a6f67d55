"""The clock of outages, which only a finished step sets back."""

from dataclasses import replace
from datetime import timedelta

import pytest

from raggrpo_api.status.restart_state import WatchState
from raggrpo_api.trainer.progress import EndpointOutage, Progress, Stage
from raggrpo_operator.core.lifecycle.deadlines.outages import advance_timer, stopped, told
from support.fakes.fake_runtime import T0

BEGAN = WatchState(outage_since=T0, outage_step=5)
LATER = T0 + timedelta(seconds=50)


def waits_at(step: int) -> Progress:
    return Progress(attempt=1, stage=Stage.WAITING_FOR_ENDPOINT, step=step, total_steps=9)


def test_it_goes_on_while_the_same_step_waits() -> None:
    assert advance_timer(BEGAN, waits_at(5), LATER) == BEGAN


def test_a_step_that_was_finished_between_two_looks_begins_it_anew() -> None:
    found = advance_timer(BEGAN, waits_at(6), LATER)
    assert found == WatchState(outage_since=LATER, outage_step=6)


TRAINS = Progress(attempt=1, stage=Stage.TRAINING, step=5, total_steps=9)


def test_an_answer_stops_it_and_leaves_its_stage_as_much_time_again() -> None:
    began = replace(BEGAN, outage_seconds=7.0, still_since=T0 - timedelta(seconds=20))

    found = advance_timer(began, TRAINS, LATER)

    assert found == WatchState(
        outage_step=5, outage_seconds=57.0, still_since=T0 + timedelta(seconds=30)
    )


def test_a_stage_begins_no_later_than_now_after_it() -> None:
    found = stopped(replace(BEGAN, still_since=T0 + timedelta(seconds=10)), LATER)
    assert found.still_since == LATER
    assert stopped(BEGAN, LATER).still_since is None


def test_only_time_that_was_observed_counts_to_a_tenth_of_a_second() -> None:
    seen = replace(BEGAN, watched_since=T0 + timedelta(seconds=20), outage_seconds=0.14)
    assert stopped(seen, LATER).outage_seconds == 30.1


def test_it_goes_on_where_it_stopped_when_the_same_step_waits_again() -> None:
    waited = WatchState(outage_step=5, outage_seconds=57.0)
    expected = WatchState(outage_since=LATER, outage_step=5, outage_seconds=57.0)
    assert advance_timer(waited, waits_at(5), LATER) == expected
    assert advance_timer(waited, waits_at(4), LATER) == expected
    assert advance_timer(replace(waited, outage_seconds=0.5), waits_at(4), LATER).outage_step == 5


def test_a_wait_that_took_no_time_is_forgotten() -> None:
    found = advance_timer(WatchState(outage_step=5), waits_at(4), LATER)
    assert (found.outage_since, found.outage_step) == (LATER, 4)


@pytest.mark.parametrize("state", [BEGAN, WatchState(outage_step=5, outage_seconds=0.5)])
def test_a_step_that_is_finished_sets_it_to_zero(state: WatchState) -> None:
    assert advance_timer(state, TRAINS.model_copy(update={"step": 6}), LATER) == WatchState()


def test_the_first_wait_begins_it_at_whatever_step() -> None:
    for step in (0, 3):
        expected = WatchState(outage_since=T0, outage_step=step)
        assert advance_timer(WatchState(), waits_at(step), T0) == expected
    assert advance_timer(WatchState(), TRAINS, T0) == WatchState()


def test_each_service_is_told_with_its_cause_and_none_as_well() -> None:
    down = [EndpointOutage(name=name, since="noon", cause="refused") for name in ("kb", "judge")]
    assert told(down) == "kb since noon: refused; judge since noon: refused"
    assert told([]) == "the driver names no service"
