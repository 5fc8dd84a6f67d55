"""Warnings in the status: the checkpoint interval, rules and the limit of the list."""

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

FAILING = JobStatus(
    progress=ProgressStatus(seconds_per_step=2.0),
    restarts=RestartCounts(by_cause={"HeadLost": 2, "Preempted": 40}),
    restart_state=RestartState(spent=SpentTime(active_seconds=2000), slowest_save_seconds=5.0),
)
STABLE = replace(FAILING, restarts=RestartCounts())
# Two failures in 2000 s and saves of 5 s: slightly less than √(2 · 5 · 1000) s, 48 steps of 2 s.
BEST = 48


def make_round(status: JobStatus, every: int = 1000) -> Round:
    job = make_scenario_job({"checkpoint.everySteps": every, "training.totalSteps": 10_000})
    return Round(job, Observed(), T0, status, resolve(job, None))


def messages(status: JobStatus = FAILING, every: int = 1000) -> list[str]:
    this = make_round(status, every)
    update_interval_warning(this)
    assert this.status.warning_count == len(this.status.warnings)
    return [each.message for each in this.status.warnings]


def with_failures(counts: Mapping[str, int] = FAILING.restarts.by_cause, **state: Any) -> JobStatus:
    return replace(
        FAILING,
        restarts=RestartCounts(by_cause=dict(counts)),
        restart_state=replace(FAILING.restart_state, **state),
    )


def test_checkpoint_interval_far_from_best_causes_warning_with_reasons() -> None:
    assert messages() == [
        "1000: saving takes 5 s, a step 2 s, 2 failures in 2000 s of training"
        f" → checkpoint.everySteps: {BEST}"
    ]
    [once] = messages(with_failures({"HeadLost": 1}))
    assert "1 failure in" in once


@pytest.mark.row("C9")
@pytest.mark.parametrize(
    ("every", "is_far"),
    [(BEST // 2 - 1, True), (BEST // 2, False), (BEST, False), (BEST * 2, False),
     (BEST * 2 + 1, True)],
)  # fmt: skip
def test_checkpoint_interval_within_factor_two_of_best_is_not_reported(
    every: int, is_far: bool
) -> None:
    assert bool(messages(every=every)) is is_far


@pytest.mark.parametrize(
    "status",
    [
        pytest.param(with_failures({}), id="no failure"),
        pytest.param(
            with_failures({"Preempted": 3, "Suspended": 1, "Degraded": 1, "Superseded": 1}),
            id="causes that save first",
        ),
        pytest.param(with_failures(slowest_save_seconds=0.0), id="no save"),
        pytest.param(with_failures(spent=SpentTime()), id="no time"),
        pytest.param(replace(FAILING, progress=ProgressStatus()), id="no step"),
    ],
)
def test_checkpoint_interval_warning_requires_failures_save_time_and_step_time(
    status: JobStatus,
) -> None:
    assert messages(status) == []


def test_best_checkpoint_interval_is_one_step_when_steps_are_long() -> None:
    long = replace(FAILING, progress=ProgressStatus(seconds_per_step=1000.0))
    assert messages(long, every=3)[0].endswith("checkpoint.everySteps: 1")
    assert messages(long, every=2) == []


def test_best_checkpoint_interval_is_failure_interval_when_saves_are_long() -> None:
    assert best_interval(20.0, 10.0) == 10.0
    assert best_interval(19.999, 10.0) == pytest.approx(8.89, abs=0.01)
    assert best_interval(20.001, 10.0) == 10.0


def make_violation(path: str, severity: Severity = Severity.WARNING, **more: Any) -> Violation:
    texts = {"message": "is unusual", "remedy": "write less"} | more
    return Violation(path=path, reason=Reason.LEARNING_RATE_UNUSUAL, severity=severity, **texts)


def with_warnings(*violations: Violation, status: JobStatus = STABLE) -> JobStatus:
    this = make_round(status)
    update_warnings(this, violations)
    return this.status


def test_rule_warnings_and_interval_warning_are_updated_independently() -> None:
    this = make_round(with_warnings(make_violation("spec.a"), status=FAILING))
    update_interval_warning(this)
    update_interval_warning(this)
    both = [each.path for each in this.status.warnings]

    assert both == ["spec.checkpoint.everySteps", "spec.a"]
    replaced = with_warnings(make_violation("spec.b"), status=this.status).warnings
    assert [each.path for each in replaced] == ["spec.checkpoint.everySteps", "spec.b"]
    changed = make_round(this.status, every=BEST)
    update_warnings(changed, [make_violation("spec.b")])
    assert [each.path for each in changed.status.warnings] == ["spec.b"]
    stable = make_round(replace(this.status, restarts=RestartCounts()))
    update_interval_warning(stable)
    assert [each.path for each in stable.status.warnings] == ["spec.a"]


def test_warnings_are_unique_and_limited() -> None:
    twice = with_warnings(
        make_violation("spec.a"), make_violation("spec.a"), make_violation("spec.b", Severity.ERROR)
    )
    assert ([each.path for each in twice.warnings], twice.warning_count) == (["spec.a"], 1)
    many = with_warnings(*(make_violation(f"spec.n{n}") for n in range(35)))
    assert [each.path for each in many.warnings] == [f"spec.n{n}" for n in range(32)]
    assert many.warning_count == 35


def test_checkpoint_interval_warning_is_listed_once_when_list_is_full() -> None:
    this = make_round(
        with_warnings(*(make_violation(f"spec.n{n}") for n in range(35)), status=STABLE)
    )
    this.status = replace(this.status, restarts=FAILING.restarts)
    for _ in range(2):
        update_interval_warning(this)
        assert this.status.warnings[0].path == "spec.checkpoint.everySteps"
        assert (len(this.status.warnings), this.status.warning_count) == (32, 36)


def test_long_warning_keeps_start_of_remedy() -> None:
    [warning] = with_warnings(
        make_violation("spec." + "p" * 300, message="m" * 900, remedy="r" * 900)
    ).warnings
    assert warning == JobWarning(
        path="spec." + "p" * 123,
        reason="LearningRateUnusual",
        message="m" * 253 + " → " + "r" * 256,
    )
    assert len(warning.message) == 512
