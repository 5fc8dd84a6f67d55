from dataclasses import replace
from typing import Any

import pytest

from raggrpo_api.memory.arithmetic import GIB
from raggrpo_api.status.attempts import AttemptRecord
from raggrpo_api.status.conditions import Condition, ConditionType
from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.trainer.progress import Segment
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.core.text.comparison import Run, comparison, last_segments
from support.builders.operator.jobs import make_job


def make_step(step: int, **changes: Any) -> dict[str, Any]:
    kb = {"answered": 4, "failures": {"Timeout": 1}, "p50": 0.2, "p95": 0.5}
    return {
        "step": step,
        "epoch": 1,
        "attempt": 1,
        "reward_mean": 0.5,
        "num_samples": 20,
        "num_sampled_tokens": 100,
        "response_tokens": 5.0,
        "step_seconds": 4.0,
        "seconds": {"train": 3.0, "other": 1.0},
        "forward_seconds": 1.0,
        "shares": {"train": 0.75, "other": 0.25, "forward": 0.25},
        "retrieval": {"kb": kb},
        "host_memory_bytes": GIB,
        **changes,
    }


def make_stage(left: str, seconds: float, attempt: int = 1) -> dict[str, Any]:
    return {"event": "stage", "attempt": attempt, "step": 0, "left": left, "seconds": seconds}


def make_run(
    spec: dict[str, Any] | None = None,
    history: list[dict[str, Any]] | None = None,
    events: list[dict[str, Any]] | None = None,
) -> Run:
    resolved = resolve(make_job(spec or {}))
    return Run("runs/a", "job", resolved, JobStatus(), history or [], events or [])


def rows_of(a: Run, b: Run) -> dict[str, list[str]]:
    lines = "\n".join(comparison(a, b)).splitlines()
    assert max(map(len, lines)) <= 100
    return {line[:36].strip(): line[36:].split() for line in lines}


@pytest.mark.row("A17", "A35")
def test_comparison_has_rows_with_percentages() -> None:
    a = make_run(
        {"rollout.n": 5},
        [make_step(n) for n in range(1, 4)],
        [make_stage("LoadingModel", 10.0), make_stage("FirstStep", 10.0)],
    )
    faster = {
        "step_seconds": 3.0,
        "seconds": {"train": 1.5, "other": 1.5},
        "forward_seconds": 0.6,
        "device_utilization": 0.75,
        "shares": {"train": 0.5, "other": 0.5, "forward": 0.2},
        "num_samples": 12,
    }
    calls = {"answered": 4, "failures": {}, "p50": 0.1, "p95": 0.25}
    b = make_run(
        {"rollout.n": 3},
        [
            make_step(
                n,
                **faster,
                retrieval={"kb": calls},
                host_memory_bytes=GIB / 2,
            )
            for n in range(1, 4)
        ],
        [make_stage("LoadingModel", 10.0), make_stage("FirstStep", 5.0)],
    )

    rows = rows_of(a, b)

    assert rows["until the first step is done"] == ["20", "15", "-25", "%"]
    assert rows["FirstStep"] == ["10", "5", "-50", "%"]
    assert rows["LoadingModel"] == ["10", "10", "+0", "%"]
    assert rows["step"] == ["4", "3", "-25", "%"]
    assert rows["seconds per sample"] == ["0.2", "0.25", "+25", "%"]
    assert rows["tokens per second"] == ["25", "33.33", "+33", "%"]
    assert rows["stage train"] == ["3", "1.5", "-50", "%"]
    assert rows["train: forward"] == ["1", "0.6", "-40", "%"]
    assert rows["GPU utilization"] == ["-", "75"]
    assert rows["share train"] == ["75", "50", "-33", "%"]
    assert rows["share train: forward"] == ["25", "20", "-20", "%"]
    assert rows["samples per step"] == ["20", "12", "-40", "%"]
    assert rows["kb p50"] == ["0.2", "0.1", "-50", "%"]
    assert rows["kb p95"] == ["0.5", "0.25", "-50", "%"]
    assert rows["kb failed calls"] == ["1", "0", "-100", "%"]
    assert rows["driver's pod"] == ["1", "0.5", "-50", "%"]
    assert rows["reward, last 10 steps"] == ["0.5", "0.5", "+0", "%"]
    assert rows["rollout.n"] == ["5", "3"]


def test_comparison_lists_specified_values_only() -> None:
    rows = rows_of(make_run({"rollout.n": 5}), make_run({"training.learningRate": 1e-5}))

    assert "rollout.n" in rows
    assert "training.learningRate" in rows
    assert "algorithm.groupSize" not in rows
    assert "rollout.maxNumBatchedTokens" not in rows


def test_comparison_omits_rows_without_values() -> None:
    rows = rows_of(make_run(), make_run())

    assert "seconds per sample" not in rows
    assert "exact match, last 10 steps" not in rows
    assert "Memory (maximum, GiB)" not in rows
    assert "none" in rows


def test_comparison_percentage_is_relative_to_size_of_first_value() -> None:
    a = make_run(history=[make_step(1, reward_mean=-0.5)])
    b = make_run(history=[make_step(1, reward_mean=0.5)])
    assert rows_of(a, b)["reward, last 10 steps"] == ["-0.5", "0.5", "+200", "%"]
    almost = make_run(history=[make_step(1, reward_mean=0.499)])
    assert rows_of(b, almost)["reward, last 10 steps"] == ["0.5", "0.499", "+0", "%"]
    zero = make_run(history=[make_step(1, reward_mean=0.0)])
    assert rows_of(zero, b)["reward, last 10 steps"] == ["0", "0.5"]


@pytest.mark.row("A17")
def test_last_two_segments_of_run_are_compared() -> None:
    faster = {"attempt": 2, "num_samples": 12, "step_seconds": 2.0}
    history = [make_step(n) for n in range(1, 5)]
    history += [make_step(n, **faster) for n in range(5, 9)]
    events = [make_stage("FirstStep", 8.0), make_stage("FirstStep", 4.0, attempt=2)]
    status = JobStatus(
        attempts=[AttemptRecord(number=2, seconds=30), AttemptRecord(number=1, seconds=60)],
        segments=[
            Segment(first_step=5, changes=["rollout.n: 5 → 3", "rollout.temperature: 0.7 → 0.6"])
        ],
    )
    run = replace(make_run(history=history, events=events), status=status)

    rows = rows_of(*last_segments(run))

    assert rows["steps"] == ["4", "4", "+0", "%"]
    assert rows["seconds of all attempts"] == ["60", "30", "-50", "%"]
    assert rows["FirstStep"] == ["8", "4", "-50", "%"]
    assert rows["samples per step"] == ["20", "12", "-40", "%"]
    assert rows["rollout.n"] == ["5", "3"]
    assert rows["rollout.temperature"] == ["0.7", "0.6"]
    assert "restarts" not in rows


def test_run_without_earlier_segment_is_rejected() -> None:
    started = replace(
        make_run(history=[make_step(41)]), status=JobStatus(segments=[Segment(first_step=41)])
    )
    for run in (make_run(history=[make_step(1)]), make_run(), started):
        with pytest.raises(ValueError, match="has steps of one segment only: specify two jobs"):
            last_segments(run)


def test_comparison_names_run_that_learned_nothing() -> None:
    condition = Condition(type=ConditionType.NOT_LEARNING, status="True", reason="ZeroVariance")
    a = make_run()
    b = replace(a, status=JobStatus(conditions=[condition]))

    assert rows_of(a, b)["not learning"] == ["-", "ZeroVariance"]
    assert "not learning" not in rows_of(a, a)
