"""Time accounting: downtime, retained steps and ratios."""

from datetime import datetime
from typing import Any

import pytest

from raggrpo_api.status.attempts import AttemptRecord
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.job_status import JobStatus, ProgressStatus
from raggrpo_api.status.restart_state import RestartState, SpentTime
from raggrpo_operator.core.state.training_time import (
    downtime_seconds,
    retained_seconds,
    with_ratios,
)
from support.builders.operator.rounds import at
from support.fakes.fake_runtime import T0


def before(cause: Cause, started: datetime | None = T0, seconds: int = 100) -> AttemptRecord:
    return AttemptRecord(number=1, cause=cause, started=started, seconds=seconds)


@pytest.mark.parametrize(
    ("older", "now", "down"),
    [
        pytest.param([], at(107), 0, id="the first attempt"),
        pytest.param([before(Cause.STALLED)], at(107), 7, id="a restart"),
        pytest.param([before(Cause.STALLED)], at(100), 0, id="a restart at once"),
        pytest.param([before(Cause.STALLED)], at(98), 0, id="clock set back"),
        pytest.param([before(Cause.SUSPENDED)], at(107), 0, id="suspended"),
        pytest.param([before(Cause.PREEMPTED)], at(107), 0, id="preempted"),
        pytest.param([before(Cause.SUCCEEDED)], at(107), 0, id="a target raised"),
        pytest.param(
            [before(Cause.UNSCHEDULABLE, None), before(Cause.STALLED)],
            at(107),
            7,
            id="previous attempt never started",
        ),
        pytest.param([before(Cause.UNSCHEDULABLE, None)], at(107), 0, id="no attempt started"),
    ],
)
def test_downtime_is_time_since_end_of_previous_attempt(
    older: list[AttemptRecord], now: datetime, down: int
) -> None:
    status = JobStatus(attempts=[AttemptRecord(number=3, started=now), *older])
    assert downtime_seconds(status, now) == down


@pytest.mark.parametrize(
    ("first_step", "lost", "kept"), [(10, 4, 12.0), (None, 0, 0.0), (10, 10, 0.0), (19, 5, 0.0)]
)
def test_retained_seconds_exclude_lost_steps(
    first_step: int | None, lost: int, kept: float
) -> None:
    record = AttemptRecord(number=1, from_step=first_step, to_step=20, lost_steps=lost)
    assert retained_seconds(record, 2.0) == kept


def ratios(record: AttemptRecord, now: datetime = at(100), **spent: Any) -> tuple[str, str]:
    status = JobStatus(
        attempts=[record, before(Cause.STALLED)],
        progress=ProgressStatus(seconds_per_step=2.0),
        restart_state=RestartState(spent=SpentTime(**spent)),
    )
    status_with_ratios = with_ratios(status, now)
    return status_with_ratios.effective_training_time_ratio, status_with_ratios.waiting_time_ratio


RUNNING = AttemptRecord(number=1, started=T0, from_step=0, to_step=20)
ENDED = AttemptRecord(number=1, started=T0, from_step=0, to_step=20, cause=Cause.STALLED)


def test_time_of_running_attempt_counts_until_now() -> None:
    assert ratios(RUNNING) == ("0.40", "")
    assert ratios(RUNNING, kept_seconds=40.0, active_seconds=60, down_seconds=40) == ("0.40", "")


def test_time_of_ended_attempt_is_not_counted_twice() -> None:
    spent: dict[str, Any] = {"kept_seconds": 40.0, "active_seconds": 60, "down_seconds": 20}
    assert ratios(ENDED, **spent) == ("0.50", "")


def test_waiting_time_is_excluded_from_training_time_ratio() -> None:
    waited = AttemptRecord(number=1, started=T0, from_step=0, to_step=20, waiting_seconds=20)
    assert ratios(waited) == ("0.50", "0.20")
    assert ratios(waited, waiting_seconds=30, active_seconds=100) == ("0.27", "0.25")


def test_waiting_time_is_limited_to_running_time() -> None:
    lying = AttemptRecord(number=1, started=T0, from_step=0, to_step=20, waiting_seconds=10**6)
    assert ratios(lying) == ("", "1.00")


@pytest.mark.parametrize("now", [T0, at(-60)])
def test_time_ratios_are_empty_without_elapsed_time(now: datetime) -> None:
    assert ratios(RUNNING, now) == ("", "")
    assert ratios(AttemptRecord(number=1)) == ("", "")


def test_training_time_of_earlier_attempts_survives_backward_clock_jump() -> None:
    spent: dict[str, Any] = {"kept_seconds": 60.0, "active_seconds": 200}
    assert ratios(RUNNING, at(-60), **spent) == ("0.50", "")


def test_training_time_ratio_counts_fractional_seconds() -> None:
    spent: dict[str, Any] = {"kept_seconds": 0.5, "active_seconds": 1, "waiting_seconds": 0}
    assert ratios(ENDED, **spent) == ("0.50", "")


def test_training_time_ratio_is_at_most_one() -> None:
    assert ratios(ENDED, kept_seconds=70.0, active_seconds=60) == ("1.00", "")
