from typing import Any

import pytest

from raggrpo_api.memory.arithmetic import GIB
from raggrpo_api.status.restart_state import Baseline
from raggrpo_api.status.sizing import PodRole
from raggrpo_api.trainer.progress import Metric, Progress, Stage
from raggrpo_operator.core.lifecycle.during_attempt.trends import (
    baseline_of,
    memory_growth_message,
    slowdown_message,
)

BASELINE = Baseline(
    step=10,
    seconds=10.0,
    seconds_by_stage={"generate": 4.0, "train": 5.0, "other": 1.0},
    host_memory=4 * GIB,
    rank_memory=20 * GIB,
)
LIMITS = {PodRole.HEAD: 10.0 * GIB, PodRole.TRAINER: 60.0 * GIB}
NO_LIMITS = dict.fromkeys(LIMITS, 0.0)


def at(step: int, memory: float = 0.0, rank_memory: float = 0.0, **more: Any) -> Progress:
    measured = {"host_memory_bytes": memory, "rank_memory_bytes": rank_memory}
    metrics = [Metric(name=name, value=f"{value:.6g}") for name, value in measured.items() if value]
    return Progress(
        attempt=1, stage=Stage.TRAINING, step=step, total_steps=400, metrics=metrics, **more
    )


@pytest.mark.parametrize(
    ("seconds", "is_slow", "expected"),
    [(13.0, False, False), (13.1, False, True), (12.1, True, True), (12.0, True, False)],
)
def test_slowdown_starts_at_thirty_percent_and_ends_below_twenty(
    seconds: float, is_slow: bool, expected: bool
) -> None:
    assert (
        bool(slowdown_message(BASELINE, at(59, seconds_per_step=seconds), is_slow=is_slow))
        is expected
    )


@pytest.mark.row("A25")
def test_slowdown_message_names_stage_that_grew_most() -> None:
    seconds_by_stage = {"generate": 8.5, "train": 9.0, "other": 1.0}

    message = slowdown_message(
        BASELINE, at(59, seconds_per_step=14.7, seconds_by_stage=seconds_by_stage), is_slow=False
    )

    assert message == "14.70 s per step, 10.00 s at step 10: generate grew from 4.00 to 8.50 s"


@pytest.mark.parametrize(
    ("step", "memory", "is_reported"),
    [(29, 4.6, False), (30, 4.6, True), (30, 4.51, True), (30, 4.49, False)],
)
def test_memory_growth_report_requires_twenty_steps_and_five_percent(
    step: int, memory: float, is_reported: bool
) -> None:
    assert bool(memory_growth_message(BASELINE, at(step, memory * GIB), LIMITS)) is is_reported


@pytest.mark.parametrize(("seconds", "stage"), [(0.1, "generate"), (0.9, "reward")])
def test_slowdown_message_names_new_stage(seconds: float, stage: str) -> None:
    seconds_by_stage = {"generate": 4.2, "reward": seconds}

    message = slowdown_message(
        BASELINE, at(59, seconds_per_step=14.7, seconds_by_stage=seconds_by_stage), is_slow=False
    )

    grew = "generate grew from 4.00 to 4.20 s" if stage == "generate" else "reward grew from 0.00"
    assert f": {grew}" in message


def test_memory_growth_is_not_reported_when_limit_is_reached_at_last_step() -> None:
    baseline, now = Baseline(step=10, host_memory=4 * 10**9), at(110, 6e9)
    for limit, is_reported in (
        (11.8e9, False),
        (11.79e9, True),
    ):  # 20 MB per step, 290 steps remaining
        assert (
            bool(memory_growth_message(baseline, now, LIMITS | {PodRole.HEAD: limit}))
            is is_reported
        )
    assert memory_growth_message(
        baseline, at(30, 5e9), LIMITS | {PodRole.HEAD: 20e9}
    )  # growth of exactly 5 %


def test_memory_growth_message_contains_step_at_which_limit_is_reached() -> None:
    # 2 GiB in 100 steps and 4 GiB remaining: 200 more steps.
    message = memory_growth_message(BASELINE, at(110, 6 * GIB), LIMITS)

    assert message.startswith("head pod: 6.00 GiB, 4.00 GiB at step 10;")
    assert message.endswith("at about step 310")


@pytest.mark.row("B14")
def test_memory_growth_is_reported_for_trainer_and_head_pods() -> None:
    # 10 GiB in 100 steps and 30 GiB remaining: 300 more steps, of which the job needs 290.
    assert memory_growth_message(BASELINE, at(110, 4 * GIB, 30 * GIB), LIMITS) == ""

    trainer_message = memory_growth_message(BASELINE, at(110, 4 * GIB, 31 * GIB), LIMITS)
    both_messages = memory_growth_message(BASELINE, at(110, 6 * GIB, 31 * GIB), LIMITS)

    assert trainer_message.startswith(
        "trainer pod: 31.00 GiB, 20.00 GiB at step 10; projected to reach the limit of 60"
    )
    assert both_messages.startswith("head pod: 6.00 GiB")
    assert both_messages.endswith(trainer_message)


@pytest.mark.parametrize(
    ("progress", "limits"),
    [
        pytest.param(at(390, 6 * GIB), LIMITS, id="lasts until the end"),
        pytest.param(at(29, 6 * GIB), LIMITS, id="too few steps"),
        pytest.param(at(110, 4.4 * GIB), LIMITS, id="noise"),
        pytest.param(at(110, 3 * GIB), LIMITS, id="shrinks"),
        pytest.param(at(110), LIMITS, id="not measured"),
        pytest.param(at(110, 6 * GIB), NO_LIMITS, id="no limit"),
    ],
)
def test_memory_growth_within_limit_is_not_reported(
    progress: Progress, limits: dict[PodRole, float]
) -> None:
    assert memory_growth_message(BASELINE, progress, limits) == ""


def test_baseline_rounds_to_milliseconds() -> None:
    seconds_by_stage = {"generate": 4.00162}

    baseline = baseline_of(
        at(12, 2 * GIB, 7 * GIB, seconds_per_step=9.51251, seconds_by_stage=seconds_by_stage)
    )

    assert (baseline.step, baseline.seconds, baseline.seconds_by_stage) == (
        12,
        9.513,
        {"generate": 4.002},
    )
    assert baseline.host_memory == pytest.approx(2 * GIB, rel=1e-5)
    assert baseline.rank_memory == pytest.approx(7 * GIB, rel=1e-5)


def test_baseline_omits_unmeasured_memory() -> None:
    baseline = baseline_of(at(12))
    assert (baseline.host_memory, baseline.rank_memory) == (0, 0)


@pytest.mark.parametrize(("reported", "expected"), [(1.1e15, 1.1e15), (2e15, 0.0), (-1.0, 0.0)])
def test_baseline_ignores_memory_out_of_range(reported: float, expected: float) -> None:
    assert baseline_of(at(12, reported)).host_memory == expected
