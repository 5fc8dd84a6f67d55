"""The end of an attempt: status updates, restarts and failed jobs."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from raggrpo_api.memory.shortage import Shortage
from raggrpo_api.spec.recovery import RecoverySpec
from raggrpo_api.status.attempts import AttemptRecord, RestartCounts
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import ConditionType
from raggrpo_api.status.job_status import JobStatus, ProgressStatus
from raggrpo_api.status.restart_state import (
    LaunchState,
    Remedies,
    RestartState,
    RetryState,
    SpentTime,
    WatchState,
)
from raggrpo_api.trainer.progress import CheckpointRef
from raggrpo_operator.core.lifecycle.actions import StopRetrievers
from raggrpo_operator.core.lifecycle.after_attempt.recovery import (
    backoff,
    fail,
    max_delay,
    needs_new_cluster,
    requested_retry,
    settle,
)
from raggrpo_operator.core.lifecycle.observed import ClusterObserved, Observed, ServiceObserved
from raggrpo_operator.core.lifecycle.round import Decision, Round
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.core.state.conditions import get_condition, set_condition
from support.fakes.fake_runtime import T0, Scenario, make_scenario, make_scenario_job

RUNNING = AttemptRecord(
    number=2, started=T0 - timedelta(seconds=100), from_step=10, to_step=27, waiting_seconds=30
)
EARLIER = AttemptRecord(number=1, cause=Cause.NODE_LOST, to_step=11, from_step=0)
RUNNING_JOB = JobStatus(
    attempt=2,
    attempts=[RUNNING, EARLIER],
    checkpoint=CheckpointRef(step=20, path="/20"),
    progress=ProgressStatus(seconds_per_step=1.234),
)


def with_state(*groups: Any, status: JobStatus = RUNNING_JOB, **record: Any) -> JobStatus:
    """Return the status with these state groups and changes of the newest attempt's record."""
    newest, *older = status.attempts
    state = status.restart_state
    for each in groups:
        state = state.with_group(each)
    return replace(status, attempts=[replace(newest, **record), *older], restart_state=state)


def make_round(
    status: JobStatus = RUNNING_JOB, changes: Mapping[str, Any] | None = None, **observed: Any
) -> Round:
    job = make_scenario_job(changes).model_copy(update={"status": status})
    return Round(job, Observed(**observed), T0, status, resolve(job, None))


def end_attempt(
    cause: Cause,
    status: JobStatus = RUNNING_JOB,
    changes: Mapping[str, Any] | None = None,
    short_of: Shortage | None = None,
    **observed: Any,
) -> Decision:
    return settle(make_round(status, changes, **observed), cause, "on purpose", short_of)


def condition(status: JobStatus, kind: ConditionType) -> tuple[str, str, str]:
    current = get_condition(status, kind)
    return current.status, current.reason, current.message


# Records


def test_attempt_end_records_steps_and_time() -> None:
    spent = SpentTime(active_seconds=40, kept_seconds=5.5, waiting_seconds=7, down_seconds=9)
    earlier = replace(RUNNING_JOB, restarts=RestartCounts(lost_steps=3))

    status = end_attempt(Cause.PROGRAM_ERROR, with_state(spent, status=earlier)).status

    newest = status.attempts[0]
    assert (newest.cause, newest.message) == (Cause.PROGRAM_ERROR, "on purpose")
    assert (newest.seconds, newest.lost_steps, status.restarts.lost_steps) == (100, 7, 10)
    assert status.restart_state.spent == SpentTime(
        active_seconds=140, kept_seconds=17.8, waiting_seconds=37, down_seconds=9
    )
    assert status.effective_training_time_ratio == "0.16"
    assert status.attempts[1] == EARLIER


@pytest.mark.parametrize(("started", "seconds"), [(None, 0), (T0, 0), (T0 + timedelta(hours=1), 0)])
def test_attempt_without_elapsed_time_has_zero_seconds(started: Any, seconds: int) -> None:
    status = end_attempt(Cause.PROGRAM_ERROR, with_state(started=started)).status

    assert status.attempts[0].seconds == seconds
    spent = status.restart_state.spent
    assert (spent.active_seconds, spent.waiting_seconds) == (0, 0)


@pytest.mark.parametrize(
    ("cause", "saved", "lost"),
    [
        (Cause.STALLED, None, 27),
        (Cause.STALLED, 26, 1),
        (Cause.STALLED, 27, 0),
        (Cause.STALLED, 40, 0),
        (Cause.SUCCEEDED, None, 0),
    ],
)
def test_steps_after_newest_checkpoint_are_counted_as_lost(
    cause: Cause, saved: int | None, lost: int
) -> None:
    newest = None if saved is None else CheckpointRef(step=saved, path=f"/{saved}")
    target = {"training.totalSteps": 27}

    status = end_attempt(cause, replace(RUNNING_JOB, checkpoint=newest), target).status

    assert (status.attempts[0].lost_steps, status.restarts.lost_steps) == (lost, lost)


def test_long_attempt_end_message_is_truncated() -> None:
    updated = settle(make_round(), Cause.STALLED, "x" * 5000).status
    assert len(updated.attempts[0].message) == 1024


WAITING_JOB = with_state(
    WatchState(outage_since=T0 - timedelta(seconds=9), looked=T0),
    status=set_condition(
        RUNNING_JOB, ConditionType.WAITING_FOR_ENDPOINT, True, "EndpointDown", "kb is down", T0
    ),
)


def test_attempt_end_clears_waiting_condition() -> None:
    updated = end_attempt(Cause.STALLED, WAITING_JOB).status
    assert condition(updated, ConditionType.WAITING_FOR_ENDPOINT)[:2] == ("False", "AttemptEnded")
    watch = updated.restart_state.watch
    assert (watch.outage_since, watch.outage_seconds) == (None, 9.0)


def test_job_failure_clears_waiting_condition() -> None:
    updated = fail(
        make_round(WAITING_JOB), Cause.ENDPOINT_DOWN, "service unavailable for 3601 s"
    ).status
    assert condition(updated, ConditionType.WAITING_FOR_ENDPOINT)[:2] == ("False", "Failed")


# Success


@pytest.mark.parametrize("target", [26, 27])
def test_job_completes_at_target_step(target: int) -> None:
    decision = end_attempt(Cause.SUCCEEDED, changes={"training.totalSteps": target})

    assert condition(decision.status, ConditionType.COMPLETE) == (
        "True",
        "TargetReached",
        "on purpose",
    )
    for kind in (ConditionType.PROGRESSING, ConditionType.CLUSTER_READY):
        assert condition(decision.status, kind) == ("False", "Complete", "")
    assert decision.status.completion_time == T0
    assert (decision.actions, decision.requeue_after) == ((), 0.0)


def test_complete_job_stops_managed_retrievers() -> None:
    target = {"training.totalSteps": 27}
    kept = (ServiceObserved("kb", "http://kb", is_ready=True),)
    assert end_attempt(Cause.SUCCEEDED, changes=target, retrievers=kept).actions == (
        StopRetrievers(),
    )


def test_job_with_raised_target_restarts_after_backoff() -> None:
    intent = RetryState(intent=Cause.STALLED, saved_step=19)
    changes = {"training.totalSteps": 28, "recovery.backoffSeconds": 30}

    decision = end_attempt(Cause.SUCCEEDED, with_state(intent), changes)

    retry = decision.status.restart_state.retry
    assert retry.next_retry_time == T0 + timedelta(seconds=30)
    assert condition(decision.status, ConditionType.PROGRESSING) == (
        "False",
        "TargetRaised",
        "on purpose",
    )
    assert (decision.requeue_after, decision.status.restarts) == (0.0, RestartCounts())


@pytest.mark.parametrize(
    ("from_step", "saved", "checkpoint"),
    [(20, 0, 20), (10, 20, 20), (None, 0, 20), (10, 0, None)],
)
def test_success_without_new_checkpoint_is_false_success(
    from_step: int | None, saved: int, checkpoint: int | None
) -> None:
    newest = None if checkpoint is None else CheckpointRef(step=checkpoint, path="/x")
    status = with_state(RetryState(saved_step=saved), from_step=from_step)

    decision = end_attempt(Cause.SUCCEEDED, replace(status, checkpoint=newest))

    assert decision.status.attempts[0].cause is Cause.FALSE_SUCCESS
    assert decision.status.restarts.by_cause == {"FalseSuccess": 1}


# Suspension and queues


def test_suspended_attempt_does_not_use_restart_budget() -> None:
    stopping = RetryState(intent=Cause.SUSPENDED, warm_failures_in_a_row=1, ends_in_a_row=2)

    decision = end_attempt(Cause.SUSPENDED, with_state(stopping))

    assert decision.status.restart_state.retry == replace(stopping, intent=None)
    assert condition(decision.status, ConditionType.PROGRESSING) == ("False", "Suspended", "")
    assert (decision.requeue_after, decision.status.restarts.total) == (0.0, 0)
    assert decision.status.restarts.by_cause == {}


@pytest.mark.parametrize(
    ("cause", "is_queued", "since"),
    [
        (Cause.PREEMPTED, True, T0),
        (Cause.PREEMPTED, False, T0 - timedelta(hours=1)),
        (Cause.STALLED, True, T0 - timedelta(hours=1)),
    ],
)
def test_pod_losses_of_preemption_are_not_attributed_to_next_attempt(
    cause: Cause, is_queued: bool, since: Any
) -> None:
    status = with_state(LaunchState(cluster_since=T0 - timedelta(hours=1)))

    decision = end_attempt(cause, status, cluster=ClusterObserved(1, is_queued=is_queued))

    assert decision.status.restart_state.launch.cluster_since == since


# Restarts


def test_restart_counts_reset_after_new_checkpoint() -> None:
    counts = RestartCounts(total=5, since_progress=4, by_cause={"Stalled": 2, "HeadLost": 3})
    before = RetryState(
        intent=Cause.STALLED, saved_step=19, ends_in_a_row=4, warm_failures_in_a_row=1,
        next_retry_time=T0,
    )  # fmt: skip

    decision = end_attempt(
        Cause.STALLED, with_state(before, status=replace(RUNNING_JOB, restarts=counts))
    )

    assert decision.status.restarts == RestartCounts(
        total=6, since_progress=1, by_cause={"Stalled": 3, "HeadLost": 3}, lost_steps=7
    )
    assert decision.status.restart_state.retry == RetryState(
        saved_step=20, ends_in_a_row=1, warm_failures_in_a_row=1
    )
    message = "Stalled: on purpose"
    assert condition(decision.status, ConditionType.PROGRESSING) == ("False", "Restarting", message)
    assert (decision.requeue_after, decision.actions) == (0.0, ())


@pytest.mark.parametrize("saved", [20, 25])
def test_rewritten_checkpoint_does_not_count_as_progress(saved: int) -> None:
    decision = end_attempt(Cause.STALLED, with_state(RetryState(saved_step=saved, ends_in_a_row=1)))
    retry = decision.status.restart_state.retry
    assert (retry.saved_step, retry.ends_in_a_row) == (saved, 2)


STUCK = with_state(RetryState(saved_step=20, ends_in_a_row=1, warm_failures_in_a_row=0), to_step=11)


def test_restart_without_new_checkpoint_is_counted_and_delayed() -> None:
    exact = {"recovery.backoffSeconds": 100}

    decision = end_attempt(Cause.STALLED, STUCK, exact)

    assert decision.status.restarts.since_progress == 1
    retry = decision.status.restart_state.retry
    assert (retry.ends_in_a_row, retry.warm_failures_in_a_row) == (2, 1)
    assert retry.next_retry_time is not None
    assert 90 <= (retry.next_retry_time - T0).total_seconds() <= 110
    assert retry.saved_step == 20
    again = end_attempt(Cause.STALLED, with_state(retry, status=STUCK), exact)
    assert again.status.restart_state.retry.warm_failures_in_a_row == 2


@pytest.mark.parametrize(
    ("cause", "is_counted", "in_a_row"),
    [
        (Cause.STALLED, True, 2),
        (Cause.PREEMPTED, False, 0),
        (Cause.RETRIEVAL_UNAVAILABLE, True, 0),
        (Cause.NODE_LOST, True, 0),
        (Cause.HEAD_LOST, True, 2),
    ],
)
def test_warm_failures_are_counted_only_for_cluster_related_causes(
    cause: Cause, is_counted: bool, in_a_row: int
) -> None:
    before = RetryState(saved_step=20, warm_failures_in_a_row=1)

    decision = end_attempt(cause, with_state(before, status=STUCK))

    assert decision.status.restart_state.retry.warm_failures_in_a_row == in_a_row
    assert decision.status.restarts.since_progress == int(is_counted)


@pytest.mark.parametrize(("to_step", "in_a_row"), [(11, 2), (12, 1)])
def test_new_step_resets_warm_failures(to_step: int, in_a_row: int) -> None:
    before = RetryState(saved_step=20, warm_failures_in_a_row=1)
    older = [*RUNNING_JOB.attempts, replace(EARLIER, to_step=3)]

    decision = end_attempt(
        Cause.STALLED,
        with_state(before, status=replace(RUNNING_JOB, attempts=older), to_step=to_step),
    )

    assert decision.status.restart_state.retry.warm_failures_in_a_row == in_a_row


@pytest.mark.parametrize(("to_step", "in_a_row"), [(0, 2), (1, 1)])
def test_first_step_resets_warm_failures(to_step: int, in_a_row: int) -> None:
    before = RetryState(saved_step=20, warm_failures_in_a_row=1)
    alone = replace(RUNNING_JOB, attempts=[replace(RUNNING, to_step=to_step)])

    decision = end_attempt(Cause.STALLED, with_state(before, status=alone))

    assert decision.status.restart_state.retry.warm_failures_in_a_row == in_a_row


@pytest.mark.parametrize(("since", "is_failed"), [(2, False), (3, True)])
def test_restart_budget_is_exhausted_after_max_restarts(since: int, is_failed: bool) -> None:
    status = replace(STUCK, restarts=RestartCounts(since_progress=since))

    decision = end_attempt(Cause.STALLED, status, {"recovery.maxRestarts": 3})

    value, reason, message = condition(decision.status, ConditionType.FAILED)
    assert (value == "True", reason == "RestartBudgetExhausted") == (is_failed, is_failed)
    if is_failed:
        assert message == "3 restarts without a new checkpoint; last cause Stalled: on purpose"
        assert decision.requeue_after == 0.0


# Repeated failures


def ends(*at: int, cause: Cause = Cause.NON_FINITE) -> JobStatus:
    older = [AttemptRecord(number=1, cause=cause, to_step=step) for step in at]
    return replace(STUCK, attempts=[replace(RUNNING, to_step=27), *older])


def test_second_non_finite_loss_skips_step() -> None:
    decision = end_attempt(Cause.NON_FINITE, ends(27))

    remedies = decision.status.restart_state.remedies
    assert (remedies.skipped_steps, remedies.rejected_checkpoints) == ([28], ["/20"])
    assert condition(decision.status, ConditionType.PROGRESSING)[2] == (
        "NonFinite: on purpose (deterministic: 2 attempts ended this way after step 27)"
    )


@pytest.mark.parametrize(
    ("cause", "earlier"), [(Cause.STALLED, [27]), (Cause.NON_FINITE, []), (Cause.NON_FINITE, [26])]
)
def test_step_is_not_skipped_when_earlier_failures_differ(cause: Cause, earlier: list[int]) -> None:
    remedies = end_attempt(cause, ends(*earlier, cause=cause)).status.restart_state.remedies
    assert (remedies.skipped_steps, remedies.rejected_checkpoints) == ([], [])


def test_step_skip_without_checkpoint_does_not_reject_checkpoints() -> None:
    decision = end_attempt(Cause.NON_FINITE, replace(ends(27), checkpoint=None))
    remedies = decision.status.restart_state.remedies
    assert (remedies.skipped_steps, remedies.rejected_checkpoints) == ([28], [])


def test_newest_skipped_steps_and_rejected_checkpoints_are_kept() -> None:
    full = Remedies(
        skipped_steps=[*range(100, 164)], rejected_checkpoints=[f"/{n}" for n in range(64)]
    )

    decision = end_attempt(Cause.NON_FINITE, with_state(full, status=ends(27)))

    remedies = decision.status.restart_state.remedies
    assert remedies.skipped_steps == [*range(101, 164), 28]
    assert remedies.rejected_checkpoints == [*(f"/{n}" for n in range(1, 64)), "/20"]


@pytest.mark.parametrize(
    ("earlier", "is_failed"), [([], False), ([27], False), ([27, 26], False), ([27, 27], True)]
)
def test_third_non_finite_loss_fails_job(earlier: list[int], is_failed: bool) -> None:
    decision = end_attempt(Cause.NON_FINITE, ends(*earlier))
    assert (
        condition(decision.status, ConditionType.FAILED)[:2] == ("True", "NonFinite")
    ) is is_failed


@pytest.mark.parametrize("cause", [Cause.CUDA_OUT_OF_MEMORY, Cause.HOST_OUT_OF_MEMORY])
@pytest.mark.parametrize(("times", "is_failed"), [(2, False), (3, True)])
def test_third_out_of_memory_without_mitigation_fails_job(
    cause: Cause, times: int, is_failed: bool
) -> None:
    status = ends(*[27] * (times - 1), cause=cause)

    decision = end_attempt(cause, status, {"recovery.onOutOfMemory": "Restart"})

    value, reason, message = condition(decision.status, ConditionType.FAILED)
    assert ((value, reason) == ("True", str(cause))) is is_failed
    assert message.endswith("; no mitigation is left") is is_failed


def test_out_of_memory_adds_mitigation() -> None:
    applied = Remedies(mitigations=["MicroBatchHalved"])
    status = with_state(applied, status=ends(27, 27, cause=Cause.CUDA_OUT_OF_MEMORY))

    decision = end_attempt(Cause.CUDA_OUT_OF_MEMORY, status, short_of=Shortage.STEP)

    mitigations = decision.status.restart_state.remedies.mitigations
    assert len(mitigations) == 2
    assert mitigations[0] == "MicroBatchHalved"
    assert condition(decision.status, ConditionType.FAILED)[0] == "Unknown"


@pytest.mark.parametrize("cause", [Cause.CUDA_OUT_OF_MEMORY, Cause.HOST_OUT_OF_MEMORY])
def test_out_of_memory_fails_job_when_on_out_of_memory_is_fail(cause: Cause) -> None:
    fails = {"recovery.onOutOfMemory": "Fail"}
    assert condition(end_attempt(cause, changes=fails).status, ConditionType.FAILED)[1] == str(
        cause
    )
    other = end_attempt(Cause.STALLED, changes=fails)
    assert condition(other.status, ConditionType.FAILED)[0] == "Unknown"


# Node failures


@pytest.mark.parametrize(("earlier", "is_avoided"), [(0, False), (1, True)])
def test_newly_avoided_node_is_reported_and_requires_new_cluster(
    earlier: int, is_avoided: bool
) -> None:
    counts = {"gpu-7": earlier} if earlier else {}
    status = with_state(Remedies(failures_by_node=counts, node_failed_at=T0))
    cluster = ClusterObserved(1, cause=Cause.WORKER_LOST, node="gpu-7")

    decision = end_attempt(Cause.WORKER_LOST, status, cluster=cluster)

    message = "WorkerLost: on purpose" + (
        "; 2 failures are attributed to node gpu-7, which is avoided while other nodes fit"
        if is_avoided
        else ""
    )
    assert condition(decision.status, ConditionType.PROGRESSING)[2] == message
    assert decision.status.restart_state.remedies.failures_by_node == {"gpu-7": earlier + 1}
    assert needs_new_cluster(decision.status) is is_avoided


# Failed jobs


def test_failed_job_records_retry_annotation() -> None:
    scenario = make_scenario()
    scenario.retry("3")
    this = Round(scenario.job, Observed(), T0, RUNNING_JOB, resolve(scenario.job, None))

    decision = fail(this, Cause.DATA_ERROR, "no rows")

    assert condition(decision.status, ConditionType.FAILED) == ("True", "DataError", "no rows")
    for kind in (ConditionType.PROGRESSING, ConditionType.CLUSTER_READY):
        assert condition(decision.status, kind) == ("False", "Failed", "")
    assert (decision.status.completion_time, decision.status.retry) == (T0, "3")
    assert decision.requeue_after == 0.0


def retry_value(value: str) -> str:
    scenario: Scenario = make_scenario()
    scenario.retry(value)
    return requested_retry(scenario.job)


def test_long_or_unprintable_retry_value_is_hashed() -> None:
    assert retry_value("x" * 64) == "x" * 64
    for value in ("x" * 65, "two\nlines"):
        assert retry_value(value) not in ("", value, value[:64])
    assert requested_retry(make_scenario().job) == ""


@pytest.mark.parametrize(
    ("cause", "warm_failures", "is_new"),
    [
        (None, 2, False),
        (Cause.STALLED, 1, False),
        (Cause.STALLED, 2, True),
        (Cause.STALLED, 3, True),
        (Cause.HEAD_LOST, 0, False),
        (Cause.NODE_LOST, 0, True),
    ],
)
def test_new_cluster_is_needed_after_two_warm_failures(
    cause: Cause | None, warm_failures: int, is_new: bool
) -> None:
    retry = RetryState(warm_failures_in_a_row=warm_failures)
    assert needs_new_cluster(with_state(retry, cause=cause)) is is_new


def test_job_without_attempt_does_not_need_new_cluster() -> None:
    retry = RetryState(warm_failures_in_a_row=2)
    assert needs_new_cluster(JobStatus(restart_state=RestartState(retry=retry))) is False


# Delays


def test_backoff_doubles_up_to_maximum() -> None:
    assert [backoff(n, 100, 1000, "x") for n in (0, 1)] == [0.0, 0.0]
    delays = [backoff(n, 100, 1000, "x") for n in (2, 3, 4, 5, 6, 7)]
    shares = [delay / delays[0] for delay in delays]
    assert shares == pytest.approx([1.0, 2.0, 4.0, 8.0, 10.0, 10.0])


def test_backoff_jitter_is_at_most_ten_percent() -> None:
    # 400 keys cover nearly the full range of the hash.
    delays = [backoff(2, 1000, 1000, f"job/{n}") for n in range(400)]
    assert 900 <= min(delays) < 905
    assert 1095 < max(delays) <= 1100
    assert backoff(2, 1000, 1000, "job/7") == delays[7]


def test_max_delay_includes_jitter_and_one_second() -> None:
    assert max_delay(RecoverySpec(max_backoff_seconds=360)) == pytest.approx(397.0)
