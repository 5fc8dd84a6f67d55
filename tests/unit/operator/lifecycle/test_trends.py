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

BASE = Baseline(
    step=10,
    seconds=10.0,
    seconds_by_stage={"generate": 4.0, "train": 5.0, "other": 1.0},
    host_memory=4 * GIB,
    rank_memory=20 * GIB,
)
LIMITS = {PodRole.HEAD: 10.0 * GIB, PodRole.TRAINER: 60.0 * GIB}
NO_LIMITS = dict.fromkeys(LIMITS, 0.0)


def at(step: int, memory: float = 0.0, of_ranks: float = 0.0, **more: Any) -> Progress:
    measured = {"host_memory_bytes": memory, "rank_memory_bytes": of_ranks}
    metrics = [Metric(name=name, value=f"{value:.6g}") for name, value in measured.items() if value]
    return Progress(
        attempt=1, stage=Stage.TRAINING, step=step, total_steps=400, metrics=metrics, **more
    )


@pytest.mark.parametrize(
    ("seconds", "is_slow", "expected"),
    [(13.0, False, False), (13.1, False, True), (12.1, True, True), (12.0, True, False)],
)
def test_steps_are_slow_from_thirty_percent_until_twenty(
    seconds: float, is_slow: bool, expected: bool
) -> None:
    assert (
        bool(slowdown_message(BASE, at(59, seconds_per_step=seconds), is_slow=is_slow)) is expected
    )


@pytest.mark.row("A25")
def test_slowdown_names_stage_that_grew_most() -> None:
    parts = {"generate": 8.5, "train": 9.0, "other": 1.0}

    words = slowdown_message(
        BASE, at(59, seconds_per_step=14.7, seconds_by_stage=parts), is_slow=False
    )

    assert words == "14.70 s per step, 10.00 s at step 10: generate grew from 4.00 to 8.50 s"


@pytest.mark.parametrize(
    ("step", "memory", "is_told"),
    [(29, 4.6, False), (30, 4.6, True), (30, 4.51, True), (30, 4.49, False)],
)
def test_growth_counts_from_twenty_steps_and_a_twentieth_of_the_limit_on(
    step: int, memory: float, is_told: bool
) -> None:
    assert bool(memory_growth_message(BASE, at(step, memory * GIB), LIMITS)) is is_told


@pytest.mark.parametrize(("seconds", "named"), [(0.1, "generate"), (0.9, "reward")])
def test_slowdown_names_new_stage(seconds: float, named: str) -> None:
    parts = {"generate": 4.2, "reward": seconds}

    words = slowdown_message(
        BASE, at(59, seconds_per_step=14.7, seconds_by_stage=parts), is_slow=False
    )

    grew = "generate grew from 4.00 to 4.20 s" if named == "generate" else "reward grew from 0.00"
    assert f": {grew}" in words


def test_memory_may_reach_its_limit_with_the_last_step() -> None:
    base, now = Baseline(step=10, host_memory=4 * 10**9), at(110, 6e9)
    for limit, is_told in ((11.8e9, False), (11.79e9, True)):  # 20 MB a step, 290 steps to come
        assert bool(memory_growth_message(base, now, LIMITS | {PodRole.HEAD: limit})) is is_told
    assert memory_growth_message(
        base, at(30, 5e9), LIMITS | {PodRole.HEAD: 20e9}
    )  # a twentieth of it


def test_memory_that_will_not_last_is_told_with_the_step_that_it_lasts_until() -> None:
    # 2 GiB in 100 steps, 4 GiB left: 200 steps more.
    words = memory_growth_message(BASE, at(110, 6 * GIB), LIMITS)

    assert words.startswith("head pod: 6.00 GiB, 4.00 GiB at step 10;")
    assert words.endswith("at about step 310")


@pytest.mark.row("B14")
def test_memory_of_the_ranks_pods_is_watched_beside_the_heads() -> None:
    # 10 GiB in 100 steps, 30 GiB left: 300 steps more, while 290 are to come.
    assert memory_growth_message(BASE, at(110, 4 * GIB, 30 * GIB), LIMITS) == ""

    of_ranks = memory_growth_message(BASE, at(110, 4 * GIB, 31 * GIB), LIMITS)
    of_both = memory_growth_message(BASE, at(110, 6 * GIB, 31 * GIB), LIMITS)

    assert of_ranks.startswith(
        "trainer pod: 31.00 GiB, 20.00 GiB at step 10; projected to reach the limit of 60"
    )
    assert of_both.startswith("head pod: 6.00 GiB")
    assert of_both.endswith(of_ranks)


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
def test_memory_that_lasts_is_not_told(progress: Progress, limits: dict[PodRole, float]) -> None:
    assert memory_growth_message(BASE, progress, limits) == ""


def test_baseline_rounds_to_milliseconds() -> None:
    parts = {"generate": 4.00162}

    base = baseline_of(at(12, 2 * GIB, 7 * GIB, seconds_per_step=9.51251, seconds_by_stage=parts))

    assert (base.step, base.seconds, base.seconds_by_stage) == (12, 9.513, {"generate": 4.002})
    assert base.host_memory == pytest.approx(2 * GIB, rel=1e-5)
    assert base.rank_memory == pytest.approx(7 * GIB, rel=1e-5)


def test_baseline_has_no_unmeasured_memory() -> None:
    base = baseline_of(at(12))
    assert (base.host_memory, base.rank_memory) == (0, 0)


@pytest.mark.parametrize(("told", "taken"), [(1.1e15, 1.1e15), (2e15, 0.0), (-1.0, 0.0)])
def test_memory_beyond_a_pebibyte_is_not_believed(told: float, taken: float) -> None:
    assert baseline_of(at(12, told)).host_memory == taken
