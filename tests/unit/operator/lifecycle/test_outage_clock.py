"""The clock of outages, which only a finished step sets back."""

from datetime import timedelta

from raggrpo_api.progress import Progress, Stage
from raggrpo_api.status import WatchState
from raggrpo_operator.core.lifecycle.outages import outage_clock
from support.fakes.fake_runtime import T0

BEGAN = WatchState(outage_since=T0, outage_step=5)
LATER = T0 + timedelta(seconds=50)


def waits_at(step: int) -> Progress:
    return Progress(attempt=1, stage=Stage.WAITING_FOR_ENDPOINT, step=step, total_steps=9)


def test_it_goes_on_while_the_same_step_waits() -> None:
    assert outage_clock(BEGAN, waits_at(5), LATER) == BEGAN


def test_a_step_that_was_finished_between_two_looks_begins_it_anew() -> None:
    found = outage_clock(BEGAN, waits_at(6), LATER)
    assert found == WatchState(outage_since=LATER, outage_step=6)
