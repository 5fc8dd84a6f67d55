"""The outage timer, reset only by a completed step."""

from dataclasses import replace
from datetime import timedelta

import pytest

from raggrpo_api.status.restart_state import WatchState
from raggrpo_api.trainer.progress import EndpointOutage, Progress, Stage
from raggrpo_operator.core.lifecycle.deadlines.outages import advance_timer, describe, pause_timer
from support.fakes.fake_runtime import T0

WAITING = WatchState(outage_since=T0, outage_step=5)
LATER = T0 + timedelta(seconds=50)


def waiting_at(step: int) -> Progress:
    return Progress(attempt=1, stage=Stage.WAITING_FOR_ENDPOINT, step=step, total_steps=9)


def test_outage_timer_runs_while_same_step_waits() -> None:
    assert advance_timer(WAITING, waiting_at(5), LATER) == WAITING


def test_outage_timer_restarts_when_step_completes_between_reads() -> None:
    watch = advance_timer(WAITING, waiting_at(6), LATER)
    assert watch == WatchState(outage_since=LATER, outage_step=6)


TRAINING = Progress(attempt=1, stage=Stage.TRAINING, step=5, total_steps=9)


def test_service_response_pauses_outage_timer_and_extends_stage_deadline() -> None:
    waiting = replace(WAITING, outage_seconds=7.0, still_since=T0 - timedelta(seconds=20))

    watch = advance_timer(waiting, TRAINING, LATER)

    assert watch == WatchState(
        outage_step=5, outage_seconds=57.0, still_since=T0 + timedelta(seconds=30)
    )


def test_stage_timer_start_is_limited_to_current_time() -> None:
    watch = pause_timer(replace(WAITING, still_since=T0 + timedelta(seconds=10)), LATER)
    assert watch.still_since == LATER
    assert pause_timer(WAITING, LATER).still_since is None


def test_outage_timer_counts_observed_time_only() -> None:
    observed = replace(WAITING, watched_since=T0 + timedelta(seconds=20), outage_seconds=0.14)
    assert pause_timer(observed, LATER).outage_seconds == 30.1


def test_outage_timer_resumes_when_same_step_waits_again() -> None:
    waited = WatchState(outage_step=5, outage_seconds=57.0)
    expected = WatchState(outage_since=LATER, outage_step=5, outage_seconds=57.0)
    assert advance_timer(waited, waiting_at(5), LATER) == expected
    assert advance_timer(waited, waiting_at(4), LATER) == expected
    assert advance_timer(replace(waited, outage_seconds=0.5), waiting_at(4), LATER).outage_step == 5


def test_outage_without_elapsed_seconds_restarts_timer_at_current_step() -> None:
    watch = advance_timer(WatchState(outage_step=5), waiting_at(4), LATER)
    assert (watch.outage_since, watch.outage_step) == (LATER, 4)


@pytest.mark.parametrize("state", [WAITING, WatchState(outage_step=5, outage_seconds=0.5)])
def test_completed_step_resets_outage_timer(state: WatchState) -> None:
    assert advance_timer(state, TRAINING.model_copy(update={"step": 6}), LATER) == WatchState()


def test_first_outage_starts_timer_at_current_step() -> None:
    for step in (0, 3):
        expected = WatchState(outage_since=T0, outage_step=step)
        assert advance_timer(WatchState(), waiting_at(step), T0) == expected
    assert advance_timer(WatchState(), TRAINING, T0) == WatchState()


def test_outage_description_lists_services_with_causes() -> None:
    down = [EndpointOutage(name=name, since="noon", cause="refused") for name in ("kb", "judge")]
    assert describe(down) == "kb since noon: refused; judge since noon: refused"
    assert describe([]) == "the driver reported no service"
