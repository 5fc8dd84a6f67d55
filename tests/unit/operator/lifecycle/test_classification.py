"""Precedence of the evidence for the end of an attempt."""

from typing import Any

import pytest

from raggrpo_api.memory.shortage import Shortage
from raggrpo_api.status.cause import Cause
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.progress import Failure, Progress, Stage
from raggrpo_operator.core.lifecycle.after_attempt.classification import AttemptEnd, classify
from raggrpo_operator.core.lifecycle.observed import (
    AttemptObserved,
    ClusterObserved,
    SubmissionStatus,
)

FAILED, STOPPED = SubmissionStatus.FAILED, SubmissionStatus.STOPPED
SUCCEEDED, RUNNING = SubmissionStatus.SUCCEEDED, SubmissionStatus.RUNNING
READY = ClusterObserved(1, is_ready=True)
QUEUED = ClusterObserved(1, is_queued=True, message="waits in queue research")


def end_of(
    status: SubmissionStatus | None,
    cluster: ClusterObserved | None = READY,
    progress: Progress | None = None,
    *,
    intent: Cause | None = None,
    was_reported: bool = True,
    **attempt: Any,
) -> AttemptEnd | None:
    newest = None if status is None else AttemptObserved(1, status, **attempt)
    return classify(
        newest, cluster, progress, was_reported=was_reported, intent=intent, total_steps=60
    )


def at(step: int, **more: Any) -> Progress:
    return Progress(attempt=1, stage=Stage.TRAINING, step=step, **more)


LOST = ClusterObserved(
    1, is_lost=True, cause=Cause.HOST_OUT_OF_MEMORY, short_of=Shortage.HEAD_HOST, message="OOM"
)


@pytest.mark.parametrize("status", [None, RUNNING, FAILED, SUCCEEDED])
def test_lost_cluster_takes_precedence_over_submission_status(
    status: SubmissionStatus | None,
) -> None:
    expected = AttemptEnd(Cause.HOST_OUT_OF_MEMORY, "OOM", Shortage.HEAD_HOST)
    assert end_of(status, LOST) == expected
    assert end_of(status, None) == AttemptEnd(Cause.HEAD_LOST, "the Ray cluster is gone")
    silent = ClusterObserved(1, is_lost=True)
    assert end_of(status, silent) == AttemptEnd(Cause.HEAD_LOST, "the Ray cluster is gone")


@pytest.mark.parametrize("cluster", [None, LOST])
def test_attempt_cause_is_stop_intent_when_cluster_is_gone(
    cluster: ClusterObserved | None,
) -> None:
    message = "the attempt was stopped (Stalled), and its cluster is gone"
    assert end_of(None, cluster, intent=Cause.STALLED) == AttemptEnd(Cause.STALLED, message)


@pytest.mark.parametrize(
    ("intent", "cause"), [(None, Cause.PREEMPTED), (Cause.SUSPENDED, Cause.SUSPENDED)]
)
@pytest.mark.parametrize("was_reported", [True, False])
def test_attempt_is_preempted_when_queue_removes_its_pods(
    intent: Cause | None, cause: Cause, was_reported: bool
) -> None:
    end = end_of(None, QUEUED, intent=intent, was_reported=was_reported)
    assert end == AttemptEnd(cause, "waits in queue research")


def test_attempt_unknown_to_head_is_lost_only_if_reported_before() -> None:
    message = "the head restarted and lost the attempt"
    assert end_of(None) == AttemptEnd(Cause.HEAD_LOST, message)
    assert end_of(None, was_reported=False) is None


@pytest.mark.parametrize("status", [SubmissionStatus.PENDING, RUNNING])
def test_attempt_has_not_ended_without_terminal_driver_status(status: SubmissionStatus) -> None:
    cluster = ClusterObserved(1, is_queued=True, cause=Cause.WORKER_LOST)
    assert end_of(status, cluster, at(60), intent=Cause.STALLED) is None


@pytest.mark.parametrize(
    ("progress", "cause"),
    [
        (None, Cause.FALSE_SUCCESS),
        (at(0), Cause.FALSE_SUCCESS),
        (at(59), Cause.FALSE_SUCCESS),
        (at(60), Cause.SUCCEEDED),
        (at(49, total_steps=50), Cause.FALSE_SUCCESS),
        (at(50, total_steps=50), Cause.SUCCEEDED),
        (at(60, total_steps=70), Cause.SUCCEEDED),
    ],
)
def test_success_requires_last_step(progress: Progress | None, cause: Cause) -> None:
    lost = ClusterObserved(1, cause=Cause.WORKER_LOST)  # replaced in place
    for cluster in (READY, lost, QUEUED):
        end = end_of(SUCCEEDED, cluster, progress, exit_code=0)
        assert end is not None
        assert end.cause is cause
        if cause is Cause.SUCCEEDED and progress is not None:
            assert end.message == f"reached step {progress.step}"


def test_false_success_message_contains_steps() -> None:
    message = "the driver exited with code 0 at step {}, before step 60"
    for step, progress in ((0, None), (15, at(15))):
        expected = AttemptEnd(Cause.FALSE_SUCCESS, message.format(step))
        assert end_of(SUCCEEDED, progress=progress) == expected


def test_attempt_at_last_step_succeeds_despite_stop_intent() -> None:
    for step, cause in ((59, Cause.SUSPENDED), (60, Cause.SUCCEEDED)):
        end = end_of(SUCCEEDED, progress=at(step), intent=Cause.SUSPENDED)
        assert end is not None
        assert end.cause is cause
    unread = end_of(SUCCEEDED, intent=Cause.SUSPENDED)
    assert unread == AttemptEnd(Cause.SUSPENDED, "the attempt was stopped: Suspended")


def test_pod_evidence_takes_precedence_over_intent_and_intent_over_queue() -> None:
    lost_worker = ClusterObserved(
        1, is_queued=True, cause=Cause.WORKER_LOST, short_of=Shortage.STEP, message="ended"
    )
    stopped = AttemptEnd(Cause.STALLED, "the attempt was stopped: Stalled")
    expected = AttemptEnd(Cause.WORKER_LOST, "ended", Shortage.STEP)
    assert end_of(FAILED, lost_worker, intent=Cause.STALLED) == expected
    assert end_of(STOPPED, QUEUED, intent=Cause.STALLED) == stopped
    preempted = AttemptEnd(Cause.PREEMPTED, "waits in queue research")
    assert end_of(STOPPED, QUEUED) == end_of(FAILED, QUEUED, exit_code=12) == preempted
    foreign = AttemptEnd(Cause.STOPPED, "the submission was stopped, but not by the operator")
    assert end_of(STOPPED) == foreign


NAN = Failure(exit_code=ExitCode.NON_FINITE, message="loss nan", short_of="Step")


@pytest.mark.parametrize("code", [None, int(ExitCode.NON_FINITE)])
def test_reported_failure_is_used_when_exit_code_matches(code: int | None) -> None:
    expected = AttemptEnd(Cause.NON_FINITE, "loss nan", Shortage.STEP)
    assert end_of(FAILED, progress=at(5, failure=NAN), exit_code=code) == expected
    unknown = Failure(exit_code=99, message="?", short_of="Elsewhere")
    assert end_of(FAILED, progress=at(5, failure=unknown)) == AttemptEnd(Cause.PROGRAM_ERROR, "?")


@pytest.mark.parametrize(
    ("code", "cause", "how"),
    [
        (None, Cause.PROGRAM_ERROR, "exited without an exit code"),
        (-9, Cause.PROGRAM_ERROR, "was killed by signal 9"),
        (-1, Cause.PROGRAM_ERROR, "was killed by signal 1"),
        (0, Cause.PROGRAM_ERROR, "exited with code 0"),
        (1, Cause.PROGRAM_ERROR, "exited with code 1"),
        (99, Cause.PROGRAM_ERROR, "exited with code 99"),
        (int(ExitCode.DATA_ERROR), Cause.DATA_ERROR, "exited with code 3"),
    ],
)
def test_exit_code_message_contains_ray_message(code: int | None, cause: Cause, how: str) -> None:
    end = end_of(FAILED, progress=at(5), exit_code=code, message="Ray's words")
    assert end == AttemptEnd(cause, f"Ray's words; the driver {how}")


def test_ray_out_of_memory_report_is_used_without_exit_code() -> None:
    killed: dict[str, Any] = {"is_out_of_memory": True, "message": "low on memory"}
    expected = AttemptEnd(Cause.HOST_OUT_OF_MEMORY, "low on memory", Shortage.HEAD_HOST)
    assert end_of(FAILED, **killed) == expected
    coded = end_of(FAILED, exit_code=int(ExitCode.DATA_ERROR), **killed)
    assert coded is not None
    assert coded.cause is Cause.DATA_ERROR
