"""Single rounds: rejected and finished jobs, reopening, settling of an ended attempt."""

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.names import ANNOTATION_RETRY
from raggrpo_api.status.attempts import AttemptRecord, RestartCounts
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import Condition, ConditionType, Phase
from raggrpo_api.status.job_status import (
    ClusterStatus,
    JobStatus,
    Pinned,
    PreflightStatus,
    ProgressStatus,
)
from raggrpo_api.status.restart_state import (
    LaunchState,
    Remedies,
    RestartState,
    RetryState,
    SpentTime,
    WatchState,
)
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.progress import Progress, Stage
from raggrpo_operator.core.lifecycle.actions import (
    CreateCluster,
    DeleteCluster,
    DeletePreflight,
    StopRetrievers,
    SubmitAttempt,
)
from raggrpo_operator.core.lifecycle.before_attempt.preflight import spec_hash
from raggrpo_operator.core.lifecycle.decide import decide
from raggrpo_operator.core.lifecycle.observed import (
    AttemptObserved,
    ClusterObserved,
    Observed,
    PreflightObserved,
    ServiceObserved,
    SubmissionStatus,
)
from raggrpo_operator.core.lifecycle.round import Decision
from raggrpo_operator.core.state.conditions import get_condition
from support.builders.operator.jobs import KNOWN_7B, KNOWN_TINY
from support.builders.operator.rounds import at, condition_of, is_soon, kinds, make_condition
from support.fakes.fake_runtime import T0, make_scenario_job

READY = ClusterObserved(1, is_ready=True)
EVERYTHING = Observed(
    cluster=READY,
    retrievers=(ServiceObserved("kb", "http://kb"),),
    preflight=PreflightObserved("any"),
)
RELEASES = (DeleteCluster(1), StopRetrievers(), DeletePreflight())
PASSED, FAILED, COMPLETE = (
    ConditionType.PREFLIGHT_PASSED,
    ConditionType.FAILED,
    ConditionType.COMPLETE,
)
PROGRESSING, SUSPENDED = ConditionType.PROGRESSING, ConditionType.SUSPENDED
CLUSTER_READY, ACCEPTED = ConditionType.CLUSTER_READY, ConditionType.ACCEPTED


def make_job_with(
    *conditions: Condition,
    changes: dict[str, Any] | None = None,
    retry_annotation: str = "",
    **status: Any,
) -> RagGrpoJob:
    """Return a job with these conditions whose preflight has passed."""
    job = make_scenario_job(changes)
    passed = [] if any(c.type is PASSED for c in conditions) else [
        make_condition(PASSED, "True", "Passed")
    ]  # fmt: skip
    fields: dict[str, Any] = {
        "conditions": [*passed, *conditions],
        "preflight": PreflightStatus(spec_hash=spec_hash(job), facts=KNOWN_TINY),
        "start_time": T0,
    }
    annotations = {ANNOTATION_RETRY: retry_annotation} if retry_annotation else {}
    metadata = job.metadata.model_copy(update={"annotations": annotations})
    return job.model_copy(update={"status": JobStatus(**(fields | status)), "metadata": metadata})


def with_attempt(**record: Any) -> dict[str, Any]:
    """Return the status fields of one attempt."""
    return {
        "attempt": 1,
        "attempts": [AttemptRecord(number=1, **record)],
        "cluster": ClusterStatus(name="small-1", number=1),
    }


# --- rejected and suspended jobs


INVALID: dict[str, Any] = {"checkpoint.everySteps": 0, "volumes": []}
INVALID_FIELDS = ["checkpoint.everySteps", "checkpoint.path"]
"""Paths of the violations, below `spec`."""


def test_rejected_job_reports_all_violations_and_creates_no_objects() -> None:
    decision = decide(make_job_with(changes=INVALID), EVERYTHING, T0)

    assert condition_of(decision, ACCEPTED) == ("False", "RestartsNeedCheckpoints")
    lines = get_condition(decision.status, ACCEPTED).message.splitlines()
    assert [line.partition(":")[0] for line in lines] == [f"spec.{each}" for each in INVALID_FIELDS]
    assert condition_of(decision, PROGRESSING) == ("False", "InvalidSpec")
    assert condition_of(decision, CLUSTER_READY) == ("False", "InvalidSpec")
    assert (decision.actions, decision.requeue_after) == (RELEASES, None)


def test_recorded_attempt_with_invalid_spec_is_not_submitted() -> None:
    job = make_job_with(changes=INVALID, **with_attempt())

    decision = decide(job, Observed(cluster=READY), at(5))

    assert decision.status.attempts[0].cause is Cause.SUSPENDED
    assert "invalid before the attempt was submitted" in decision.status.attempts[0].message
    assert decision.actions == ()


@pytest.mark.parametrize(
    ("evaluated_generation", "phase"), [(1, Phase.PROVISIONING), (0, Phase.INVALID)]
)
def test_accepted_spec_is_evaluated_again_only_for_new_generation(
    evaluated_generation: int, phase: Phase
) -> None:
    accepted = make_condition(ACCEPTED, "True", "Valid", generation=evaluated_generation)
    job = make_job_with(accepted, changes=INVALID)  # by the rules of a newer release
    assert job.metadata.generation == 1

    assert decide(job, Observed(), T0).status.phase is phase


def test_suspended_job_is_not_requeued_after_cleanup() -> None:
    job = make_job_with(changes={"suspend": True})

    decision, later = (decide(job, observed, T0) for observed in (EVERYTHING, Observed()))

    assert condition_of(decision, SUSPENDED) == ("True", "Suspended")
    assert condition_of(decision, PROGRESSING) == ("False", "Suspended")
    assert condition_of(decision, CLUSTER_READY) == ("False", "Suspended")
    assert decision.actions == RELEASES
    assert is_soon(decision)
    assert (later.actions, later.requeue_after) == ((), None)


def test_suspended_condition_is_cleared_on_resume() -> None:
    job = make_job_with(make_condition(SUSPENDED, "True", "Suspended"))

    assert condition_of(decide(job, Observed(), at(5)), SUSPENDED) == ("False", "NotSuspended")


def test_start_time_is_set_in_first_round() -> None:
    fresh = make_scenario_job()

    first = decide(fresh, Observed(), at(5))
    later = decide(fresh.model_copy(update={"status": first.status}), Observed(), at(9))

    assert (first.status.start_time, later.status.start_time) == (at(5), at(5))


@pytest.mark.parametrize(
    ("edit", "is_warned"), [({"recovery.maxRestarts": 3}, True), ({"data.maxSamples": 50}, False)]
)
def test_warnings_from_facts_are_kept_after_unrelated_edit(
    edit: dict[str, Any], is_warned: bool
) -> None:
    gpus = {"resources": {"device": "GPU", "gpusPerNode": 8}}
    read = PreflightStatus(spec_hash=spec_hash(make_scenario_job(gpus)), facts=KNOWN_7B)

    decision = decide(make_job_with(changes=gpus | edit, preflight=read), Observed(), T0)

    reasons = {each.reason for each in decision.status.warnings}
    assert ("GpuMemoryUnknown" in reasons) is is_warned


@pytest.mark.parametrize(("generation", "is_evaluated"), [(0, False), (1, True)])
def test_spec_of_running_attempt_is_evaluated_again_only_when_changed(
    generation: int, is_evaluated: bool
) -> None:
    """Check a running attempt whose spec was valid in an earlier release."""
    accepted = make_condition(ACCEPTED, "True", "Valid", generation=0)
    job = make_job_with(accepted, changes=INVALID, **with_attempt(started=T0))
    metadata = job.metadata.model_copy(update={"generation": generation})

    decision = decide(job.model_copy(update={"metadata": metadata}), Observed(cluster=READY), T0)

    assert condition_of(decision, ACCEPTED)[0] == ("False" if is_evaluated else "True")


# --- finished jobs


def make_finished_job(kind: ConditionType, reason: str = "any", **overrides: Any) -> RagGrpoJob:
    """Return a finished job whose last handled retry annotation is 1."""
    fields = {
        **with_attempt(cause=Cause.PROGRAM_ERROR, started=T0),
        "progress": ProgressStatus(step=60, total_steps=60),
        "completion_time": at(5),
        "retry": "1",
        "retry_annotation": "1",
        "restarts": RestartCounts(total=9, since_progress=6),
        "restart_state": RestartState(
            remedies=Remedies(failures_by_node={"node-a": 2}, skipped_steps=[7])
        ),
    }
    return make_job_with(make_condition(kind, "True", reason), **(fields | overrides))


@pytest.mark.parametrize(
    ("kind", "retry_annotation", "changes", "reopens"),
    [
        (COMPLETE, "1", {}, False),
        (COMPLETE, "2", {}, False),
        (COMPLETE, "1", {"training.totalSteps": 61}, True),
        (FAILED, "1", {}, False),
        (FAILED, "2", {}, True),
        (FAILED, "1", {"training.totalSteps": 61}, False),
        (FAILED, "1", {"data.maxSamples": 50}, False),
    ],
)
def test_finished_job_is_reopened_by_higher_target_or_retry_annotation(
    kind: ConditionType, retry_annotation: str, changes: dict[str, Any], reopens: bool
) -> None:
    job = make_finished_job(kind, retry_annotation=retry_annotation, changes=changes)
    earlier = replace(job.status.preflight, spec_hash=spec_hash(make_scenario_job()))
    status = replace(job.status, preflight=earlier)
    job = job.model_copy(update={"status": status})

    decision = decide(job, Observed(), at(99))

    assert condition_of(decision, kind) == (("False", "Reopened") if reopens else ("True", "any"))
    assert (decision.status.completion_time is None) is reopens


@pytest.mark.parametrize(("edit", "reopens"), [({}, False), ({"data.maxSamples": 50}, True)])
def test_changed_spec_reopens_job_that_failed_before_start(
    edit: dict[str, Any], reopens: bool
) -> None:
    evaluated_generation = PreflightStatus(spec_hash=spec_hash(make_scenario_job()))
    unstarted = {"attempt": 0, "attempts": [], "preflight": evaluated_generation}

    decision = decide(make_finished_job(FAILED, changes=edit, **unstarted), Observed(), at(99))

    assert condition_of(decision, FAILED)[0] == ("False" if reopens else "True")


def test_reopening_resets_restart_budget_and_node_failures_but_keeps_skipped_steps() -> None:
    decision = decide(
        make_finished_job(FAILED, retry_annotation="2", changes={"suspend": True}),
        Observed(),
        at(99),
    )

    restarts, remedies = decision.status.restarts, decision.status.restart_state.remedies
    assert (restarts.total, restarts.since_progress) == (9, 0)
    assert (remedies.failures_by_node, remedies.skipped_steps) == ({}, [7])
    assert condition_of(decision, PASSED) == ("Unknown", "Reopened")
    assert condition_of(decision, COMPLETE) == ("False", "Reopened")
    assert decision.status.retry == "2"


def test_job_reopened_by_higher_target_does_not_repeat_preflight() -> None:
    checked = PreflightStatus(spec_hash=spec_hash(make_scenario_job()), facts=KNOWN_TINY)
    job = make_finished_job(COMPLETE, changes={"training.totalSteps": 80}, preflight=checked)

    decision = decide(job, Observed(), at(99))

    assert condition_of(decision, PASSED) == ("True", "Passed")
    assert condition_of(decision, FAILED) == ("False", "Reopened")
    assert kinds(decision) == [CreateCluster]


@pytest.mark.parametrize(("reason", "is_kept"), [("ImageChanged", False), ("DataError", True)])
def test_retry_clears_pinned_image_id_only_after_image_changed_failure(
    reason: str, is_kept: bool
) -> None:
    pinned = Pinned(image="trainer:1", image_id="sha256:1")

    decision = decide(
        make_finished_job(FAILED, reason, retry_annotation="2", pinned=pinned), Observed(), at(99)
    )

    assert decision.status.pinned == Pinned(
        image="trainer:1", image_id="sha256:1" if is_kept else ""
    )


def test_finished_job_is_requeued_until_its_objects_are_deleted() -> None:
    job = make_finished_job(COMPLETE, "TargetReached")

    decision, later = (decide(job, observed, at(99)) for observed in (EVERYTHING, Observed()))

    assert decision.actions == RELEASES
    assert is_soon(decision)
    assert (later.actions, later.requeue_after) == ((), None)


# --- recorded attempts before submission


def test_older_cluster_is_deleted_before_new_cluster_is_created() -> None:
    fields = with_attempt(cluster=2) | {"cluster": ClusterStatus(name="small-2", number=2)}

    decision = decide(make_job_with(**fields), Observed(cluster=READY), at(5))

    assert decision.actions == (DeleteCluster(1),)
    assert is_soon(decision)


def test_stale_observations_of_earlier_attempt_are_ignored() -> None:
    fields = {
        "attempt": 2,
        "attempts": [AttemptRecord(number=2)],
        "cluster": ClusterStatus(name="small-1", number=1),
    }
    observed = Observed(
        cluster=READY,
        attempt=AttemptObserved(1, SubmissionStatus.FAILED, 1),
        progress=Progress(attempt=1, stage=Stage.TRAINING, step=30, total_steps=60),
    )

    decision = decide(make_job_with(**fields), observed, at(5))

    assert kinds(decision) == [SubmitAttempt]
    assert decision.status.progress.step == 0


DEADLINE = {"activeDeadlineSeconds": 60}


def round_past_deadline(
    observed: Observed, *, started: datetime | None = None, intent: Cause | None = None
) -> Any:
    """Run a round 1 s after the job's deadline."""
    state = RestartState(
        retry=RetryState(intent=intent),
        launch=LaunchState(cluster_since=at(50)),
        spent=SpentTime(counted_since=T0),
        watch=WatchState(looked=at(61), watched_since=T0),
    )
    fields = with_attempt(started=started) | {"restart_state": state}
    return decide(make_job_with(changes=DEADLINE, **fields), observed, at(61))


@pytest.mark.parametrize(
    ("cluster", "suffix"),
    [
        (None, ""),
        (ClusterObserved(1), "; the cluster was not ready: its pods are not ready"),
        (ClusterObserved(1, message="0/3"), "; the cluster was not ready: 0/3"),
    ],
)
def test_active_deadline_message_contains_reason_for_waiting(
    cluster: ClusterObserved | None, suffix: str
) -> None:
    record = round_past_deadline(Observed(cluster=cluster)).status.attempts[0]

    assert record.cause is Cause.DEADLINE_EXCEEDED
    assert record.message == f"the job exceeded activeDeadlineSeconds (60 s){suffix}"


@pytest.mark.parametrize("started", [None, T0])
def test_running_driver_is_stopped_at_active_deadline(
    started: datetime | None,
) -> None:
    """This applies even if the driver is first observed in this round."""
    driver = AttemptObserved(1, SubmissionStatus.RUNNING)

    decision = round_past_deadline(Observed(cluster=READY, attempt=driver), started=started)

    assert decision.status.attempts[0].cause is None
    assert decision.status.restart_state.retry.intent is Cause.DEADLINE_EXCEEDED


def test_stopping_attempt_does_not_create_new_cluster() -> None:
    decision = round_past_deadline(Observed(), intent=Cause.SUSPENDED)

    assert decision.status.attempts[0].cause is Cause.SUSPENDED
    assert CreateCluster not in kinds(decision)


def test_provisioning_timer_restarts_after_operator_downtime() -> None:
    state = RestartState(
        launch=LaunchState(cluster_since=T0), watch=WatchState(looked=T0, watched_since=T0)
    )
    job = make_job_with(**(with_attempt() | {"restart_state": state}))

    decision = decide(job, Observed(cluster=ClusterObserved(1)), at(86_400))

    assert decision.status.attempts[0].cause is None
    assert decision.status.restart_state.watch.watched_since == at(86_400)


def test_cluster_lost_before_submission_ends_attempt() -> None:
    lost = ClusterObserved(1, is_lost=True, cause=Cause.NODE_LOST, message="node gone")

    decision = decide(make_job_with(**with_attempt()), Observed(cluster=lost), at(5))

    assert decision.status.attempts[0].cause is Cause.NODE_LOST


# --- settling of an ended attempt


def running_round(
    observed: Observed, seconds: float, reason: str = "Training", *, intent: Cause | None = None
) -> Decision:
    """Run a round of a running attempt whose Progressing has had this reason since T0."""
    status = "True" if reason == "Training" else "False"
    state = RestartState(retry=RetryState(intent=intent), watch=WatchState(looked=at(seconds)))
    fields = with_attempt(started=T0) | {"restart_state": state}
    progressing = make_condition(PROGRESSING, status, reason)
    return decide(make_job_with(progressing, **fields), observed, at(seconds))


DONE = AttemptObserved(1, SubmissionStatus.SUCCEEDED, 0)
LOST_A_RANK = AttemptObserved(1, SubmissionStatus.FAILED, ExitCode.TRAINER_RANK_LOST)


def test_success_waits_one_minute_for_final_progress() -> None:
    observed = Observed(cluster=READY, attempt=DONE)

    first = running_round(observed, 5)
    last, timed_out = (
        running_round(observed, seconds, "VerifyingSuccess") for seconds in (59.9, 60)
    )

    assert condition_of(first, PROGRESSING) == ("False", "VerifyingSuccess")
    for decision in (first, last):
        assert (decision.status.attempts[0].cause, is_soon(decision)) == (None, True)
    assert timed_out.status.attempts[0].cause is Cause.FALSE_SUCCESS


def rank_lost(cluster: ClusterObserved, evidence_seconds: float = 5.0) -> Observed:
    return Observed(cluster=cluster, attempt=LOST_A_RANK, evidence_seconds=evidence_seconds)


def test_settling_waits_for_evidence_until_timeout() -> None:
    first = running_round(rank_lost(READY), 5)
    last, timed_out = (
        running_round(rank_lost(READY), seconds, "WaitingForEvidence") for seconds in (4.9, 5)
    )

    assert condition_of(first, PROGRESSING) == ("False", "WaitingForEvidence")
    for decision in (first, last):
        assert (decision.status.attempts[0].cause, is_soon(decision)) == (None, True)
    assert timed_out.status.attempts[0].cause is Cause.TRAINER_RANK_LOST


@pytest.mark.parametrize(
    ("observed", "cause"),
    [
        (rank_lost(READY, 0.0), Cause.TRAINER_RANK_LOST),
        (rank_lost(replace(READY, is_lost=True)), Cause.HEAD_LOST),
        (rank_lost(replace(READY, is_queued=True)), Cause.PREEMPTED),
        (rank_lost(replace(READY, cause=Cause.NODE_LOST)), Cause.NODE_LOST),
        (Observed(attempt=LOST_A_RANK, evidence_seconds=5.0), Cause.HEAD_LOST),
    ],
)
def test_settling_does_not_wait_when_cause_is_known(observed: Observed, cause: Cause) -> None:
    assert running_round(observed, 5).status.attempts[0].cause is cause


def test_running_driver_sets_cluster_ready() -> None:
    driver = AttemptObserved(1, SubmissionStatus.RUNNING)

    ready, silent = (
        running_round(Observed(cluster=cluster, attempt=driver), 5)
        for cluster in (READY, ClusterObserved(1))
    )

    assert condition_of(ready, CLUSTER_READY) == ("True", "Ready")
    assert condition_of(silent, CLUSTER_READY)[0] == "Unknown"
    assert ready.status.phase is Phase.STARTING
