from typing import Any

import pytest

from raggrpo_operator.core.text.figures import (
    Pace,
    PeakMemory,
    checkpoint_seconds,
    figures,
)


def make_step(step: int, **changes: Any) -> dict[str, Any]:
    return {
        "step": step,
        "reward_mean": 0.5,
        "exact_match": 0.25,
        "num_samples": 8,
        "num_sampled_tokens": 100,
        "step_seconds": 2.0,
        "seconds": {"train": 1.5, "other": 0.5},
        "epoch": 1,
        "retrieval": {},
        **changes,
    }


def make_event(event: str, **values: Any) -> dict[str, Any]:
    return {"event": event, "step": 0, "attempt": 1, **values}


def make_validation(when: str, step: int, exact_match: float) -> dict[str, Any]:
    return make_event(
        "validation",
        when=when,
        step=step,
        exact_match=exact_match,
        reward_mean=0.5,
        control_exact_match=None,
        num_samples=9,
        num_failed=0,
    )


def test_first_and_last_rewards_are_means_of_ten_steps() -> None:
    history = [
        make_step(step, reward_mean=step / 100, exact_match=step / 200) for step in range(1, 101)
    ]
    result = figures(history, [])
    assert result.reward_first == pytest.approx(0.055)
    assert result.reward_last == pytest.approx(0.955)
    assert result.exact_match_last == pytest.approx(0.4775)


def test_steps_without_reward_are_excluded_from_mean() -> None:
    history = [make_step(1, reward_mean=0.4), make_step(2)]
    del history[1]["reward_mean"]
    assert figures(history, []).reward_first == 0.4


def test_pace_has_medians_over_steps() -> None:
    history = [
        make_step(1, step_seconds=16.0, seconds={"train": 12.0}),
        make_step(2, step_seconds=4.0, seconds={"train": 3.0}, num_samples=4),
        make_step(3, step_seconds=2.0, seconds={"train": 1.0}),
    ]
    pace = figures(history, []).pace

    assert pace.step_seconds == 4.0
    assert pace.sample_seconds == 1.0
    assert pace.tokens_per_second == 25.0
    assert pace.stage_seconds == {"train": 3.0}


def test_pace_is_unknown_without_steps() -> None:
    assert figures([], []).pace == Pace(None, None, None, {}, {}, {}, None)


def test_pace_counts_each_checkpoint_once() -> None:
    saved = [
        make_event("checkpoint", step=5, seconds=9.0),
        make_event("checkpoint", step=5, seconds=1.0),
        make_event("checkpoint", step=6, seconds=2.0),
    ]
    result = figures([make_step(1), make_step(2)], saved)

    assert result.pace.stage_seconds == {"train": 1.5, "other": 0.5, "checkpoint": 1.5}
    assert checkpoint_seconds(saved) == {5: 1.0, 6: 2.0}


def test_peak_memory_is_maximum_of_measured_steps() -> None:
    history = [
        make_step(1, host_memory_bytes=5.0),
        make_step(2),
        make_step(3, host_memory_bytes=9.0, rank_memory_bytes=7.0, device_memory_reserved_bytes=3),
    ]
    assert figures(history, []).memory == PeakMemory(
        driver=9.0, rank=7.0, device=None, device_reserved=3
    )


def test_phases_and_shares_are_medians_over_steps_that_have_them() -> None:
    history = [
        make_step(1),
        make_step(
            2, forward_seconds=1.0, device_utilization=0.5, shares={"train": 0.5, "forward": 0.25}
        ),
        make_step(3, forward_seconds=2.0, shares={"train": 0.75, "forward": 0.5}),
    ]
    pace = figures(history, []).pace

    assert pace.phase_seconds == {"forward": 1.5}
    assert pace.device_utilization == 0.5
    assert pace.shares == {"train": 0.625, "forward": 0.375}


def test_startup_ends_with_first_step_of_each_attempt() -> None:
    events = [
        make_event("stage", left="LoadingModel", seconds=4.0),
        make_event("stage", left="FirstStep", seconds=2.0),
        make_event("stage", left="Training", seconds=100.0),
        make_event("stage", left="LoadingModel", seconds=5.0, attempt=2),
    ]

    result = figures([], events)

    assert result.start_up_seconds == {
        1: {"LoadingModel": 4.0, "FirstStep": 2.0},
        2: {"LoadingModel": 5.0},
    }


def test_outage_during_first_step_counts_as_startup_time() -> None:
    events = [
        make_event("stage", left="FirstStep", stage="WaitingForEndpoint", seconds=2.0),
        make_event("stage", left="WaitingForEndpoint", stage="FirstStep", seconds=600.0),
        make_event("stage", left="FirstStep", stage="Training", seconds=3.0),
        make_event("stage", left="Training", stage="Exporting", seconds=100.0),
    ]

    result = figures([], events)

    assert result.start_up_seconds == {1: {"FirstStep": 5.0, "WaitingForEndpoint": 600.0}}


def test_newest_validation_of_step_is_used() -> None:
    events = [
        make_validation("after", 20, 0.9),
        make_validation("before", 0, 0.1),
        make_validation("before", 0, 0.2),
    ]
    result = [(v.when, v.step, v.exact_match) for v in figures([], events).validations]

    assert result == [("before", 0, 0.2), ("after", 20, 0.9)]


def test_endpoint_calls_are_summed_over_attempts() -> None:
    def calls(answered: int, p95: float, **failures: int) -> dict[str, Any]:
        return {"kb": {"answered": answered, "p50": p95 / 2, "p95": p95, "failures": failures}}

    history = [
        make_step(1, retrieval=calls(4, 0.5)),
        make_step(2, retrieval=calls(9, 0.6, Timeout=2)),
        make_step(3, epoch=2, retrieval=calls(5, 0.4, Timeout=1, BadJson=1)),
        make_step(4, epoch=3, retrieval=calls(1, 0.2)),
    ]

    [total] = figures(history, []).retrieval
    assert (total.answered, total.failures) == (15, {"Timeout": 3, "BadJson": 1})
    assert (total.p50, total.p95) == (0.1, 0.2)


def test_endpoint_calls_include_those_of_failed_step() -> None:
    calls = {"answered": 4, "retries": 1, "p50": 0.1, "p95": 0.2, "failures": {}}
    failed = {**calls, "retries": 3, "failures": {"HttpStatus": 17}}
    event = {
        "event": "failed_step",
        "step": 2,
        "epoch": 1,
        "attempt": 1,
        "retrieval": {"kb": failed},
    }

    [total] = figures([make_step(1, retrieval={"kb": calls})], [event]).retrieval
    assert (total.answered, total.failures, total.retries) == (4, {"HttpStatus": 17}, 3)
    [alone] = figures([], [event]).retrieval
    assert alone == total


def test_figures_are_empty_without_history() -> None:
    result = figures([], [])

    assert result.steps == 0
    assert result.reward_first is None
    assert result.pace.step_seconds is None
    assert result.pace.stage_seconds == {}
    assert result.retrieval == ()
