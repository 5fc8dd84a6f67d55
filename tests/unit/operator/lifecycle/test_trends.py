from dataclasses import replace
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


TOKENS = {"generate": 4000, "train": 1000}
WITH_TOKENS = replace(BASELINE, tokens_by_stage=TOKENS)


def slowdown_of(
    stages: dict[str, float], tokens: dict[str, int], baseline: Baseline = WITH_TOKENS
) -> str:
    """Return the message for a step that takes the sum of its stages."""
    progress = at(
        59, seconds_per_step=sum(stages.values()), seconds_by_stage=stages, tokens_by_stage=tokens
    )
    return slowdown_message(baseline, progress, is_slow=False)


@pytest.mark.row("A25")
@pytest.mark.parametrize(
    ("stages", "tokens", "is_slow"),
    [
        pytest.param((8.0, 5.0, 1.0), (8000, 1000), False, id="longer answers"),
        pytest.param((4.0, 15.0, 1.0), (4000, 3000), False, id="more groups with variance"),
        pytest.param((8.0, 10.0, 1.0), (8000, 2000), False, id="both"),
        pytest.param((8.0, 5.0, 1.0), (4000, 1000), True, id="slower engine"),
        pytest.param((4.0, 10.0, 1.0), (4000, 1000), True, id="slower ranks"),
        pytest.param((4.0, 5.0, 6.0), (4000, 1000), True, id="slower service"),
        pytest.param((16.0, 5.0, 1.0), (8000, 1000), True, id="longer answers, slower engine"),
        pytest.param((4.0, 5.0, 1.0), (400, 0), False, id="shorter answers, fixed costs"),
        pytest.param((8.0, 5.0, 1.0), (0, 0), True, id="tokens unknown"),
    ],
)
def test_slowdown_compares_pace_per_token(
    stages: tuple[float, float, float], tokens: tuple[int, int], is_slow: bool
) -> None:
    seconds = dict(zip(("generate", "train", "other"), stages, strict=True))
    message = slowdown_of(seconds, dict(zip(("generate", "train"), tokens, strict=True)))
    assert bool(message) is is_slow


def test_first_groups_with_variance_are_not_slow() -> None:
    baseline = replace(WITH_TOKENS, tokens_by_stage={"generate": 4000, "train": 0})
    stages = {"generate": 4.0, "train": 30.0, "other": 1.0}
    assert slowdown_of(stages, TOKENS, baseline) == ""


def test_slowdown_message_shows_pace_per_token() -> None:
    stages = {"generate": 16.0, "train": 5.0, "other": 1.0}
    assert slowdown_of(stages, {"generate": 8000, "train": 1000}) == (
        "22.00 s per step, 10.00 s at step 10 (14.00 s for the current number of tokens): "
        "generate grew from 4.00 to 16.00 s (2 ms per generated token, 1 ms at step 10)"
    )


def test_slowdown_message_accepts_tokens_of_unknown_stage() -> None:
    baseline = replace(BASELINE, tokens_by_stage={"other": 10})
    stages = {"generate": 4.0, "train": 5.0, "other": 9.0}
    assert slowdown_of(stages, {"other": 10}, baseline).endswith(
        "other grew from 1.00 to 9.00 s (900 ms per other token, 100 ms at step 10)"
    )


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
