"""The cause of an attempt for each Jobs API response, exit code and head state."""

import itertools
from typing import Any

import pytest

from raggrpo_api.status.attempts import AttemptRecord
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.job_status import ClusterStatus, JobStatus
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.progress import Failure, Progress, Stage
from raggrpo_operator.core.lifecycle.actions import SubmitAttempt
from raggrpo_operator.core.lifecycle.decide import decide
from raggrpo_operator.core.lifecycle.observed import (
    AttemptObserved,
    ClusterObserved,
    Observed,
    SubmissionStatus,
)
from support.fakes.fake_runtime import T0, make_scenario

HTTP = ["200", "404", "silent"]
"""Responses; silent: no connection, timeout, 5xx, malformed response or rejected token."""
STATUS = [status.value for status in SubmissionStatus]
EXIT_CODES: list[int | None] = [None, *map(int, ExitCode), 99, -9]
HEAD = ["ready", "not ready", "lost", "gone"]
CELLS = list(itertools.product(HTTP, STATUS, EXIT_CODES, HEAD))

ANY = "*"
# The first matching row gives the cause; "-": the attempt may still be running.
TABLE: list[tuple[str, str, object, str, str]] = [
    (ANY, ANY, ANY, "gone", "HeadLost"),
    (ANY, ANY, ANY, "lost", "NodeLost"),  # reported by its pods
    ("silent", ANY, ANY, ANY, "-"),
    ("404", ANY, ANY, ANY, "HeadLost"),  # the head restarted in place
    ("200", "PENDING", ANY, ANY, "-"),
    ("200", "RUNNING", ANY, ANY, "-"),
    ("200", "SUCCEEDED", ANY, ANY, "FalseSuccess"),  # at step 30 of 60
    ("200", "STOPPED", ANY, ANY, "Stopped"),
    ("200", "FAILED", 2, ANY, "ConfigError"),
    ("200", "FAILED", 3, ANY, "DataError"),
    ("200", "FAILED", 4, ANY, "PreflightFailed"),
    ("200", "FAILED", 5, ANY, "RewardCodeError"),
    ("200", "FAILED", 10, ANY, "CudaOutOfMemory"),
    ("200", "FAILED", 11, ANY, "RolloutEngineLost"),
    ("200", "FAILED", 12, ANY, "TrainerRankLost"),
    ("200", "FAILED", 13, ANY, "CollectiveTimeout"),
    ("200", "FAILED", 14, ANY, "NonFinite"),
    ("200", "FAILED", 15, ANY, "RetrievalUnavailable"),
    ("200", "FAILED", 16, ANY, "CheckpointWriteFailed"),
    ("200", "FAILED", 17, ANY, "VolumeFull"),
    ("200", "FAILED", 18, ANY, "CheckpointIncompatible"),
    ("200", "FAILED", 19, ANY, "CheckpointPathInUse"),
    ("200", "FAILED", 20, ANY, "RanksStuck"),
    ("200", "FAILED", 21, ANY, "HostOutOfMemory"),
    ("200", "FAILED", 22, ANY, "PolicyMismatch"),
    ("200", "FAILED", 23, ANY, "AgentError"),
    ("200", "FAILED", 75, ANY, "Preempted"),
    ("200", "FAILED", 76, ANY, "Superseded"),
    ("200", "FAILED", ANY, ANY, "ProgramError"),  # 0, 1, unknown codes, signals, none
]


def expected(cell: tuple[str, str, int | None, str]) -> str:
    for *pattern, cause in TABLE:
        if all(entry in (ANY, value) for entry, value in zip(pattern, cell, strict=True)):
            return str(cause)
    raise AssertionError(f"no row covers {cell}")


def make_observed(http: str, status: str, code: int | None, head: str, **progress: Any) -> Observed:
    cluster: ClusterObserved | None = ClusterObserved(
        1,
        is_ready=head == "ready",
        is_lost=head == "lost",
        cause=Cause.NODE_LOST if head == "lost" else None,
    )
    attempt = AttemptObserved(1, SubmissionStatus(status), code) if http == "200" else None
    return Observed(
        cluster=None if head == "gone" else cluster,
        attempt=attempt,
        progress=Progress(
            attempt=1,
            stage=Stage.TRAINING,
            step=30,
            total_steps=60,
            started_from_step=0,
            seconds_per_step=1.0,
            **progress,
        ),
        is_head_reachable=http != "silent",
    )


def attempt_after(observed: Observed, **record: Any) -> AttemptRecord:
    running = AttemptRecord(number=1, started="2026-11-21T11:59:00Z", **record)
    status = JobStatus(attempt=1, attempts=[running], cluster=ClusterStatus(number=1))
    job = make_scenario().job.model_copy(update={"status": status})
    decision = decide(job, observed, T0)
    assert not any(isinstance(action, SubmitAttempt) for action in decision.actions)
    return decision.status.attempts[0]


@pytest.mark.parametrize("head", HEAD)
@pytest.mark.parametrize("http", HTTP)
def test_cause_matches_table_for_all_observations(http: str, head: str) -> None:
    wrong = []
    for cell in [each for each in CELLS if (each[0], each[3]) == (http, head)]:
        record = attempt_after(make_observed(*cell))
        if (actual := str(record.cause or "-")) != expected(cell):
            wrong.append((*cell, actual, expected(cell)))

    assert wrong == []


def test_cause_table_rows_are_all_used() -> None:
    used = {
        next(r for r in TABLE if expected(cell) == r[4] and _matches(r, cell)) for cell in CELLS
    }

    assert used == set(TABLE)


def _matches(
    row: tuple[str, str, object, str, str], cell: tuple[str, str, int | None, str]
) -> bool:
    return all(entry in (ANY, value) for entry, value in zip(row, cell, strict=False))


def test_reported_failure_determines_cause_without_exit_code() -> None:
    failure = Failure(exit_code=ExitCode.NON_FINITE, message="loss nan")

    record = attempt_after(make_observed("200", "FAILED", None, "ready", failure=failure))

    assert (record.cause, record.message) == (Cause.NON_FINITE, "loss nan")


def test_reported_failure_with_other_exit_code_is_ignored() -> None:
    failure = Failure(exit_code=ExitCode.NON_FINITE, message="loss nan")

    record = attempt_after(make_observed("200", "FAILED", -9, "ready", failure=failure))

    assert (record.cause, "signal 9" in record.message) == (Cause.PROGRAM_ERROR, True)


def test_pod_evidence_takes_precedence_over_exit_code() -> None:
    observed = make_observed("200", "FAILED", 12, "ready")
    cluster = ClusterObserved(1, is_ready=True, cause=Cause.HOST_OUT_OF_MEMORY, message="OOMKilled")

    record = attempt_after(
        Observed(cluster=cluster, attempt=observed.attempt, progress=observed.progress)
    )

    assert (record.cause, record.message) == (Cause.HOST_OUT_OF_MEMORY, "OOMKilled")


def test_driver_killed_by_ray_memory_monitor_has_cause_host_out_of_memory() -> None:
    attempt = AttemptObserved(1, SubmissionStatus.FAILED, None, "low on memory", True)

    record = attempt_after(Observed(cluster=ClusterObserved(1, is_ready=True), attempt=attempt))

    assert (record.cause, record.message) == (Cause.HOST_OUT_OF_MEMORY, "low on memory")
