"""Trend conditions of a running attempt."""

from dataclasses import replace
from typing import Any

import pytest

from raggrpo_api.memory.arithmetic import GIB
from raggrpo_api.status.conditions import ConditionType
from raggrpo_api.status.job_status import JobStatus, Pinned
from raggrpo_api.status.reasons import ConditionReason
from raggrpo_api.status.restart_state import Baseline, RestartState
from raggrpo_api.trainer.progress import Metric, Progress, Stage
from raggrpo_operator.core.lifecycle.during_attempt.trends import (
    baseline_of,
    degradation,
    is_baseline_due,
    mismatch_change,
    trend_changes,
)
from raggrpo_operator.core.lifecycle.observed import Observed
from raggrpo_operator.core.lifecycle.round import Round
from raggrpo_operator.core.sizing.size import size
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.core.state.conditions import get_condition, set_condition
from support.builders.operator.jobs import KNOWN_TINY
from support.fakes.fake_runtime import T0, make_scenario_job

BASE = Baseline(step=20, seconds=1.0, host_memory=1 * GIB, rank_memory=1 * GIB)
GROWING, SLOWING = ConditionType.HOST_MEMORY_GROWING, ConditionType.SLOWING_DOWN
MISMATCH = ConditionType.POLICY_MISMATCH


def at(step: int, **more: Any) -> Progress:
    given = {"stage": Stage.TRAINING, "started_from_step": 10, "seconds_per_step": 1.0} | more
    metrics = [
        Metric(name=name, value=str(given.pop(name)))
        for name in ("host_memory_bytes", "rank_memory_bytes", "mismatch_mean")
        if name in given
    ]
    return Progress(attempt=1, step=step, total_steps=100_000, metrics=metrics, **given)


def make_round(baseline: Baseline = BASE, **status: Any) -> Round:
    job = make_scenario_job()
    resolved = resolve(job, KNOWN_TINY)
    sizing = size(resolved.spec, KNOWN_TINY)
    status_at_start = JobStatus(
        sizing=sizing, restart_state=RestartState(baseline=baseline), **status
    )
    return Round(job, Observed(), T0, status_at_start, resolved)


def update_trends(this: Round, progress: Progress) -> None:
    if is_baseline_due(this.state.baseline, progress):
        this.state = replace(this.state, baseline=baseline_of(progress))
    this.set_conditions(trend_changes(this.status, progress))


def updated_status(progress: Progress, baseline: Baseline = BASE) -> JobStatus:
    this = make_round(baseline)
    for kind in (SLOWING, GROWING):
        this.set_condition(kind, True, ConditionReason.MEMORY_GROWING, "of the previous attempt")
    update_trends(this, progress)
    return this.status


@pytest.mark.parametrize(
    ("progress", "is_taken"),
    [
        (at(19), False),
        (at(20), True),
        (at(21), True),
        (at(20, stage=Stage.VALIDATING), False),
        (at(20, started_from_step=None), False),
    ],
)
def test_baseline_is_taken_after_ten_steps(progress: Progress, is_taken: bool) -> None:
    status = updated_status(progress, Baseline())

    assert status.restart_state.baseline.step == (progress.step if is_taken else 0)
    for kind in (SLOWING, GROWING):
        assert get_condition(status, kind).status == str(not is_taken)
    assert degradation(status) == ""


def test_trend_conditions_are_set_and_cleared() -> None:
    leaks = {"host_memory_bytes": 1.5 * GIB, "seconds_per_step": 1.31}
    this = make_round()
    update_trends(this, at(60, **leaks))
    slow, growing = (get_condition(this.status, kind) for kind in (SLOWING, GROWING))
    assert (slow.status, slow.reason) == ("True", "StepTimeIncreased")
    assert (growing.status, growing.reason) == ("True", "MemoryGrowing")
    assert growing.message.startswith("head pod: 1.50 GiB, 1.00 GiB at step 20")
    assert degradation(this.status) == (
        f"SlowingDown: {slow.message}; HostMemoryGrowing: {growing.message}"
    )

    update_trends(this, at(90, seconds_per_step=1.2))
    assert [get_condition(this.status, kind).reason for kind in (SLOWING, GROWING)] == [
        "StepTimeStable", "MemoryStable",
    ]  # fmt: skip
    assert degradation(this.status) == ""


def test_degradation_ignores_conditions_of_previous_attempt() -> None:
    status = set_condition(
        make_round(Baseline()).status,
        SLOWING,
        True,
        ConditionReason.STEP_TIME_INCREASED,
        "1.4 s",
        T0,
    )
    assert degradation(status) == ""
    state = replace(status.restart_state, baseline=Baseline(step=1))
    assert degradation(replace(status, restart_state=state)) == "SlowingDown: 1.4 s"


@pytest.mark.parametrize(
    ("precision", "gap", "is_exceeded"),
    [
        ("FP32", 0.0, False),
        ("FP32", 0.01, False),
        ("FP32", 0.011, True),
        ("BF16", 0.1, False),
        ("BF16", 0.11, True),
        ("", 0.1, False),
        ("", 0.11, True),
    ],
)
def test_policy_mismatch_limit_depends_on_precision(
    precision: str, gap: float, is_exceeded: bool
) -> None:
    this = make_round(pinned=Pinned(precision=precision))
    this.set_conditions(mismatch_change(this.status, at(30, mismatch_mean=gap)))
    condition = get_condition(this.status, MISMATCH)
    assert condition.status == ("True" if is_exceeded else "Unknown")
    assert condition.reason == ("LogprobsDiffer" if is_exceeded else "NotEvaluated")
    assert (
        f"differ by {gap:g} nats per token at step 30 (limit" in condition.message
    ) is is_exceeded


@pytest.mark.parametrize("gap", [{}, {"mismatch_mean": "much"}])
def test_missing_mismatch_metric_does_not_change_condition(gap: dict[str, Any]) -> None:
    this = make_round()
    this.set_condition(MISMATCH, True, ConditionReason.LOGPROBS_DIFFER, "by 1")
    before = this.status
    this.set_conditions(mismatch_change(this.status, at(30, **gap)))
    assert this.status == before
