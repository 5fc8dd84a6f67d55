import io
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from rich.console import Console

from raggrpo_api.status.attempts import AttemptRecord, Tier
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import ConditionType, Phase
from raggrpo_api.status.job_status import JobStatus, ProgressStatus
from raggrpo_api.status.reasons import ConditionReason
from raggrpo_api.status.restart_state import RestartState, RetryState
from raggrpo_api.trainer.learning import NotLearningReason
from raggrpo_api.trainer.progress import Metric, Segment
from raggrpo_operator.core.state.conditions import set_condition
from raggrpo_operator.reporting.progress_display import (
    ProgressDisplay,
    duration,
    progress_line,
    status_changes,
)

NOW = datetime(2026, 11, 21, 12, 0, 18, tzinfo=UTC)
STARTED = NOW.replace(second=0)
RETRY = RestartState(retry=RetryState(next_retry_time=NOW.replace(minute=1)))


def make_status(step: int = 0, stage: str = "Training", **changes: Any) -> JobStatus:
    progress = ProgressStatus(
        step=step,
        total_steps=60,
        progress_percentage=100 * step // 60,
        stage=stage,
        seconds_per_step=1.2,
        estimated_remaining_seconds=58,
        metrics=[Metric(name="reward_mean", value="0.531")],
    )
    record = AttemptRecord(number=1, started=STARTED, to_step=step)
    status = JobStatus(phase=Phase.RUNNING, attempt=1, attempts=[record], progress=progress)
    return replace(status, **changes)


@pytest.mark.row("A9")
def test_progress_line_has_step_time_and_eta() -> None:
    line = progress_line(make_status(12), NOW)
    assert line == ("Step 12/60, 18 s elapsed, 1.2 s/step, ETA 58 s, reward 0.531, stage Training")


def test_elapsed_time_stops_with_attempt() -> None:
    ended = AttemptRecord(number=1, started=STARTED, seconds=11, cause=Cause.SUSPENDED)
    assert "11 s elapsed" in progress_line(make_status(12, attempts=[ended]), NOW)


def test_progress_line_omits_unknown_values() -> None:
    assert progress_line(JobStatus(), NOW) == "Step 0/0"


def test_resumed_run_shows_its_last_step_without_stage_and_eta() -> None:
    ended = AttemptRecord(number=1, started=STARTED, seconds=11, cause=Cause.SUSPENDED)
    waiting = make_status(12, phase=Phase.PREFLIGHT, attempts=[ended])
    lines = plain(waiting, replace(waiting, phase=Phase.PROVISIONING))
    assert lines == [
        "Step 12/60, 11 s elapsed, 1.2 s/step, reward 0.531 (last run)",
        "Preflight",
        "Provisioning",
    ]


def test_completed_run_omits_step_line() -> None:
    assert plain(make_status(60, phase=Phase.SUCCEEDED)) == ["Succeeded"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (60, "1 min"), (3540, "59 min"), (7500, "2 h 5 min")],
)
def test_duration_has_at_most_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_restart_line_has_cause_tier_and_step() -> None:
    ended = AttemptRecord(
        number=1, cause=Cause.ROLLOUT_ENGINE_LOST, message="engine 0 died", to_step=7
    )
    second = AttemptRecord(number=2, tier=Tier.WARM_CLUSTER, mitigation="MicroBatchHalved")
    resumed = replace(
        second, from_step=6, skipped_checkpoints=["step_7: truncated"], in_place=["x"]
    )
    statuses = [
        make_status(7),
        make_status(7, attempts=[ended], restart_state=RETRY),
        make_status(7, attempts=[second, ended]),
        make_status(7, attempts=[resumed, ended]),
    ]

    lines = [list(status_changes(old, new)) for old, new in pairwise(statuses)]

    assert lines == [
        [
            "Attempt 1 ended at step 7 (RolloutEngineLost): engine 0 died",
            "Next attempt at 2026-11-21T12:01:18Z",
        ],
        ["Attempt 2 starts on the same Ray cluster, with MicroBatchHalved"],
        [
            "Attempt 2 skips a checkpoint: step_7: truncated",
            "Attempt 2 resumes from step 6",
            "Attempt 2 recovered in place: x",
        ],
    ]


def test_new_segment_is_shown_once() -> None:
    segment = Segment(first_step=7, changes=["rollout.n: 5 → 3"])
    old, new = make_status(6), make_status(6, segments=[segment])

    assert list(status_changes(old, new)) == ["New segment from step 7: rollout.n: 5 → 3"]
    assert list(status_changes(new, new)) == []


def test_step_progress_is_not_printed_as_status_change() -> None:
    assert list(status_changes(make_status(3), make_status(4))) == []


def test_outage_start_and_end_are_shown_once() -> None:
    def at(value: bool, reason: str, message: str = "") -> JobStatus:
        kind = ConditionType.WAITING_FOR_ENDPOINT
        return set_condition(make_status(3), kind, value, reason, message, NOW)

    down = at(True, "EndpointDown", "endpoint kb since 12:00: Timeout")
    lines = [
        list(status_changes(old, new))
        for old, new in pairwise([make_status(3), down, down, at(False, "EndpointRecovered")])
    ]

    assert lines == [
        ["Waiting for endpoint kb since 12:00: Timeout"],
        [],
        ["Continuing: all services are available"],
    ]


def plain(*statuses: JobStatus, seconds_apart: float = 10.0) -> list[str]:
    text = io.StringIO()
    now = 0.0
    with ProgressDisplay("demo", Console(file=text, width=80), clock=lambda: now) as display:
        for status in statuses:
            display.show(status)
            now += seconds_apart
    return text.getvalue().splitlines()


def test_display_without_terminal_prints_lines() -> None:
    lines = plain(
        JobStatus(phase=Phase.PREFLIGHT),
        make_status(0, stage="LoadingModel"),
        make_status(0, stage="FirstStep"),
        make_status(1),
        make_status(2, stage="Checkpointing"),
    )

    assert lines[:4] == ["Preflight", "Attempt 1 starts", "Stage LoadingModel", "Stage FirstStep"]
    assert [line.split(",")[0] for line in lines[4:]] == ["Step 1/60", "Step 2/60"]


def test_progress_lines_are_rate_limited_except_last() -> None:
    lines = plain(*(make_status(step) for step in (1, 2, 3, 60)), seconds_apart=1.0)
    assert [line.split(",")[0] for line in lines] == ["Step 1/60", "Step 60/60"]


def test_terminal_shows_bar_stage_and_events() -> None:
    text = io.StringIO()
    console = Console(file=text, width=100, force_terminal=True, color_system=None)
    with ProgressDisplay("demo", console) as display:
        display.show(make_status(12))
        ended = AttemptRecord(number=1, cause=Cause.STALLED, message="[hang] at 12", to_step=12)
        display.show(make_status(12, attempts=[ended]))

    shown = text.getvalue()
    assert "Attempt 1 ended at step 12 (Stalled): [hang] at 12" in shown
    assert "20 %" in shown
    assert "Step 12/60" in shown
    assert "Stage Training for 0 s" in shown


def test_not_learning_is_printed_once_and_when_cleared() -> None:
    def with_learning(value: bool, reason: NotLearningReason | ConditionReason) -> JobStatus:
        kind, message = ConditionType.NOT_LEARNING, "reward 0" if value else ""
        return set_condition(make_status(12), kind, value, reason, message, NOW)

    bad = with_learning(True, NotLearningReason.NO_REWARD_SIGNAL)
    worse = with_learning(True, NotLearningReason.ALL_TRUNCATED)
    good = with_learning(False, ConditionReason.LEARNING)

    lines = [
        list(status_changes(*pair)) for pair in pairwise([make_status(12), bad, bad, worse, good])
    ]

    assert lines == [
        ["Not learning (NoRewardSignal): reward 0"],
        [],
        ["Not learning (AllTruncated): reward 0"],
        ["Learning again"],
    ]
