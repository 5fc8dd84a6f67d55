"""When another checkpoint interval is advised, and how many warnings a status lists."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from raggrpo_api.status.attempts import RestartCounts
from raggrpo_api.status.conditions import JobWarning
from raggrpo_api.status.job_status import JobStatus, ProgressStatus
from raggrpo_api.status.restart_state import RestartState, SpentTime
from raggrpo_operator.core.lifecycle.observed import Observed
from raggrpo_operator.core.lifecycle.round import Round
from raggrpo_operator.core.lifecycle.warnings import (
    best_interval,
    update_interval_warning,
    update_warnings,
)
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.core.spec.violation import Reason, Severity, Violation
from support.fakes.fake_runtime import T0, make_scenario_job

RUNS = JobStatus(
    progress=ProgressStatus(seconds_per_step=2.0),
    restarts=RestartCounts(by_cause={"HeadLost": 2, "Preempted": 40}),
    restart_state=RestartState(spent=SpentTime(active_seconds=2000), slowest_save_seconds=5.0),
)
CALM = replace(RUNS, restarts=RestartCounts())
# Two failures in 2000 s and saves of 5 s: √(2 · 5 · 1000) s and a little, 48 steps of 2 s.
BEST = 48


def make_round(status: JobStatus, every: int = 1000) -> Round:
    job = make_scenario_job({"checkpoint.everySteps": every, "training.totalSteps": 10_000})
    return Round(job, Observed(), T0, status, resolve(job, None))


def advised(status: JobStatus = RUNS, every: int = 1000) -> list[str]:
    this = make_round(status, every)
    update_interval_warning(this)
    assert this.status.warning_count == len(this.status.warnings)
    return [each.message for each in this.status.warnings]


def having(counts: Mapping[str, int] = RUNS.restarts.by_cause, **state: Any) -> JobStatus:
    return replace(
        RUNS,
        restarts=RestartCounts(by_cause=dict(counts)),
        restart_state=replace(RUNS.restart_state, **state),
    )


def test_distant_checkpoint_interval_is_a_warning_with_reasons() -> None:
    assert advised() == [
        "1000: saving takes 5 s, a step 2 s, 2 failures in 2000 s of training"
        f" → checkpoint.everySteps: {BEST}"
    ]
    [once] = advised(having({"HeadLost": 1}))
    assert "1 failure in" in once


@pytest.mark.row("C9")
@pytest.mark.parametrize(
    ("every", "is_far"),
    [(BEST // 2 - 1, True), (BEST // 2, False), (BEST, False), (BEST * 2, False),
     (BEST * 2 + 1, True)],
)  # fmt: skip
def test_half_and_double_the_best_interval_will_do(every: int, is_far: bool) -> None:
    assert bool(advised(every=every)) is is_far


@pytest.mark.parametrize(
    "status",
    [
        pytest.param(having({}), id="no failure"),
        pytest.param(
            having({"Preempted": 3, "Suspended": 1, "Degraded": 1, "Superseded": 1}),
            id="only ends that save first",
        ),
        pytest.param(having(slowest_save_seconds=0.0), id="no save"),
        pytest.param(having(spent=SpentTime()), id="no time"),
        pytest.param(replace(RUNS, progress=ProgressStatus()), id="no step"),
    ],
)
def test_nothing_is_advised_before_there_is_something_to_go_by(status: JobStatus) -> None:
    assert advised(status) == []


def test_steps_that_outlast_the_best_interval_are_all_saved() -> None:
    long = replace(RUNS, progress=ProgressStatus(seconds_per_step=1000.0))
    assert advised(long, every=3)[0].endswith("checkpoint.everySteps: 1")
    assert advised(long, every=2) == []


def test_best_interval_is_failure_interval_when_saves_are_long() -> None:
    assert best_interval(20.0, 10.0) == 10.0
    assert best_interval(19.999, 10.0) == pytest.approx(8.89, abs=0.01)
    assert best_interval(20.001, 10.0) == 10.0


def found(path: str, severity: Severity = Severity.WARNING, **more: Any) -> Violation:
    given = {"message": "is unusual", "remedy": "write less"} | more
    return Violation(path=path, reason=Reason.LEARNING_RATE_UNUSUAL, severity=severity, **given)


def listed(*violations: Violation, status: JobStatus = CALM) -> JobStatus:
    this = make_round(status)
    update_warnings(this, violations)
    return this.status


def test_advice_of_the_rules_stands_beside_that_of_the_jobs_failures() -> None:
    this = make_round(listed(found("spec.a"), status=RUNS))
    update_interval_warning(this)
    update_interval_warning(this)
    both = [each.path for each in this.status.warnings]

    assert both == ["spec.checkpoint.everySteps", "spec.a"]
    assert [each.path for each in listed(found("spec.b"), status=this.status).warnings] == [
        "spec.checkpoint.everySteps", "spec.b",
    ]  # fmt: skip
    changed = make_round(this.status, every=BEST)
    update_warnings(changed, [found("spec.b")])
    assert [each.path for each in changed.status.warnings] == ["spec.b"]
    calm = make_round(replace(this.status, restarts=RestartCounts()))
    update_interval_warning(calm)
    assert [each.path for each in calm.status.warnings] == ["spec.a"]


def test_warnings_are_unique_and_limited() -> None:
    twice = listed(found("spec.a"), found("spec.a"), found("spec.b", Severity.ERROR))
    assert ([each.path for each in twice.warnings], twice.warning_count) == (["spec.a"], 1)
    many = listed(*(found(f"spec.n{n}") for n in range(35)))
    assert [each.path for each in many.warnings] == [f"spec.n{n}" for n in range(32)]
    assert many.warning_count == 35


def test_advice_on_the_interval_is_listed_and_counted_once_however_full_the_list_is() -> None:
    this = make_round(listed(*(found(f"spec.n{n}") for n in range(35)), status=CALM))
    this.status = replace(this.status, restarts=RUNS.restarts)
    for _ in range(2):
        update_interval_warning(this)
        assert this.status.warnings[0].path == "spec.checkpoint.everySteps"
        assert (len(this.status.warnings), this.status.warning_count) == (32, 36)


def test_long_warning_keeps_start_of_remedy() -> None:
    [told] = listed(found("spec." + "p" * 300, message="m" * 900, remedy="r" * 900)).warnings
    assert told == JobWarning(
        path="spec." + "p" * 123,
        reason="LearningRateUnusual",
        message="m" * 253 + " → " + "r" * 256,
    )
    assert len(told.message) == 512
