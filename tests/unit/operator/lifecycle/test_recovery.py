"""What the end of one attempt leaves in status, and what follows it."""

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
from raggrpo_operator.core.lifecycle.observed import ClusterObserved, Observed, RetrieverObserved
from raggrpo_operator.core.lifecycle.round import Decision, Round
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.core.state.conditions import get_condition, set_condition
from support.fakes.fake_runtime import T0, Scenario, make_scenario, make_scenario_job

RUNNING = AttemptRecord(
    number=2, started=T0 - timedelta(seconds=100), from_step=10, to_step=27, waiting_seconds=30
)
EARLIER = AttemptRecord(number=1, cause=Cause.NODE_LOST, to_step=11, from_step=0)
RUNS = JobStatus(
    attempt=2,
    attempts=[RUNNING, EARLIER],
    checkpoint=CheckpointRef(step=20, path="/20"),
    progress=ProgressStatus(seconds_per_step=1.234),
)


def having(*groups: Any, status: JobStatus = RUNS, **record: Any) -> JobStatus:
    """Return the status with these groups of its state, and its newest attempt changed."""
    newest, *older = status.attempts
    state = status.restart_state
    for each in groups:
        state = state.with_group(each)
    return replace(status, attempts=[replace(newest, **record), *older], restart_state=state)


def make_round(
    status: JobStatus = RUNS, changes: Mapping[str, Any] | None = None, **observed: Any
) -> Round:
    job = make_scenario_job(changes).model_copy(update={"status": status})
    return Round(job, Observed(**observed), T0, status, resolve(job, None))


def ended(
    cause: Cause,
    status: JobStatus = RUNS,
    changes: Mapping[str, Any] | None = None,
    short_of: Shortage | None = None,
    **observed: Any,
) -> Decision:
    return settle(make_round(status, changes, **observed), cause, "on purpose", short_of)


def told(status: JobStatus, kind: ConditionType) -> tuple[str, str, str]:
    found = get_condition(status, kind)
    return found.status, found.reason, found.message


# What is recorded


def test_its_steps_and_its_time_are_accounted_for() -> None:
    spent = SpentTime(active_seconds=40, kept_seconds=5.5, waiting_seconds=7, down_seconds=9)
    earlier = replace(RUNS, restarts=RestartCounts(lost_steps=3))

    status = ended(Cause.PROGRAM_ERROR, having(spent, status=earlier)).status

    newest = status.attempts[0]
    assert (newest.cause, newest.message) == (Cause.PROGRAM_ERROR, "on purpose")
    assert (newest.seconds, newest.lost_steps, status.restarts.lost_steps) == (100, 7, 10)
    assert status.restart_state.spent == SpentTime(
        active_seconds=140, kept_seconds=17.8, waiting_seconds=37, down_seconds=9
    )
    assert status.effective_training_time_ratio == "0.16"
    assert status.attempts[1] == EARLIER


@pytest.mark.parametrize(("started", "seconds"), [(None, 0), (T0, 0), (T0 + timedelta(hours=1), 0)])
def test_unstarted_attempt_has_zero_seconds(started: Any, seconds: int) -> None:
    status = ended(Cause.PROGRAM_ERROR, having(started=started)).status

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
def test_steps_beyond_the_newest_checkpoint_are_lost(
    cause: Cause, saved: int | None, lost: int
) -> None:
    newest = None if saved is None else CheckpointRef(step=saved, path=f"/{saved}")
    target = {"training.totalSteps": 27}

    status = ended(cause, replace(RUNS, checkpoint=newest), target).status

    assert (status.attempts[0].lost_steps, status.restarts.lost_steps) == (lost, lost)


def test_long_end_message_is_shortened() -> None:
    found = settle(make_round(), Cause.STALLED, "x" * 5000).status
    assert len(found.attempts[0].message) == 1024


WAITS = having(
    WatchState(outage_since=T0 - timedelta(seconds=9), looked=T0),
    status=set_condition(
        RUNS, ConditionType.WAITING_FOR_ENDPOINT, True, "EndpointDown", "kb is down", T0
    ),
)


def test_ended_attempt_clears_waiting() -> None:
    found = ended(Cause.STALLED, WAITS).status
    assert told(found, ConditionType.WAITING_FOR_ENDPOINT)[:2] == ("False", "AttemptEnded")
    watch = found.restart_state.watch
    assert (watch.outage_since, watch.outage_seconds) == (None, 9.0)


def test_failed_job_clears_waiting() -> None:
    found = fail(make_round(WAITS), Cause.ENDPOINT_DOWN, "an hour is over").status
    assert told(found, ConditionType.WAITING_FOR_ENDPOINT)[:2] == ("False", "Failed")


# Success


@pytest.mark.parametrize("target", [26, 27])
def test_reached_target_completes_job(target: int) -> None:
    found = ended(Cause.SUCCEEDED, changes={"training.totalSteps": target})

    assert told(found.status, ConditionType.COMPLETE) == ("True", "TargetReached", "on purpose")
    for kind in (ConditionType.PROGRESSING, ConditionType.CLUSTER_READY):
        assert told(found.status, kind) == ("False", "Complete", "")
    assert found.status.completion_time == T0
    assert (found.actions, found.requeue_after) == ((), 0.0)


def test_managed_retrievers_are_stopped_with_a_complete_job() -> None:
    target = {"training.totalSteps": 27}
    kept = (RetrieverObserved("kb", "http://kb", is_ready=True),)
    assert ended(Cause.SUCCEEDED, changes=target, retrievers=kept).actions == (StopRetrievers(),)


def test_raised_target_restarts_after_backoff() -> None:
    intent = RetryState(intent=Cause.STALLED, saved_step=19)
    changes = {"training.totalSteps": 28, "recovery.backoffSeconds": 30}

    found = ended(Cause.SUCCEEDED, having(intent), changes)

    retry = found.status.restart_state.retry
    assert retry.next_retry_time == T0 + timedelta(seconds=30)
    assert told(found.status, ConditionType.PROGRESSING) == ("False", "TargetRaised", "on purpose")
    assert (found.requeue_after, found.status.restarts) == (0.0, RestartCounts())


@pytest.mark.parametrize(
    ("from_step", "saved", "checkpoint"),
    [(20, 0, 20), (10, 20, 20), (None, 0, 20), (10, 0, None)],
)
def test_success_without_new_checkpoint_is_false_success(
    from_step: int | None, saved: int, checkpoint: int | None
) -> None:
    newest = None if checkpoint is None else CheckpointRef(step=checkpoint, path="/x")
    status = having(RetryState(saved_step=saved), from_step=from_step)

    found = ended(Cause.SUCCEEDED, replace(status, checkpoint=newest))

    assert found.status.attempts[0].cause is Cause.FALSE_SUCCESS
    assert found.status.restarts.by_cause == {"FalseSuccess": 1}


# Suspension and the queue


def test_suspended_attempt_is_not_counted() -> None:
    stopping = RetryState(intent=Cause.SUSPENDED, warm_failures_in_a_row=1, ends_in_a_row=2)

    found = ended(Cause.SUSPENDED, having(stopping))

    assert found.status.restart_state.retry == replace(stopping, intent=None)
    assert told(found.status, ConditionType.PROGRESSING) == ("False", "Suspended", "")
    assert (found.requeue_after, found.status.restarts.total) == (0.0, 0)
    assert found.status.restarts.by_cause == {}


@pytest.mark.parametrize(
    ("cause", "is_queued", "since"),
    [
        (Cause.PREEMPTED, True, T0),
        (Cause.PREEMPTED, False, T0 - timedelta(hours=1)),
        (Cause.STALLED, True, T0 - timedelta(hours=1)),
    ],
)
def test_pods_that_a_queue_took_do_not_count_as_lost(
    cause: Cause, is_queued: bool, since: Any
) -> None:
    status = having(LaunchState(cluster_since=T0 - timedelta(hours=1)))

    found = ended(cause, status, cluster=ClusterObserved(1, is_queued=is_queued))

    assert found.status.restart_state.launch.cluster_since == since


# Restarts


def test_counts_reset_after_new_checkpoint() -> None:
    counts = RestartCounts(total=5, since_progress=4, by_cause={"Stalled": 2, "HeadLost": 3})
    before = RetryState(
        intent=Cause.STALLED, saved_step=19, ends_in_a_row=4, warm_failures_in_a_row=1,
        next_retry_time=T0,
    )  # fmt: skip

    found = ended(Cause.STALLED, having(before, status=replace(RUNS, restarts=counts)))

    assert found.status.restarts == RestartCounts(
        total=6, since_progress=1, by_cause={"Stalled": 3, "HeadLost": 3}, lost_steps=7
    )
    assert found.status.restart_state.retry == RetryState(
        saved_step=20, ends_in_a_row=1, warm_failures_in_a_row=1
    )
    message = "Stalled: on purpose"
    assert told(found.status, ConditionType.PROGRESSING) == ("False", "Restarting", message)
    assert (found.requeue_after, found.actions) == (0.0, ())


@pytest.mark.parametrize("saved", [20, 25])
def test_rewritten_checkpoint_is_no_progress(saved: int) -> None:
    found = ended(Cause.STALLED, having(RetryState(saved_step=saved, ends_in_a_row=1)))
    retry = found.status.restart_state.retry
    assert (retry.saved_step, retry.ends_in_a_row) == (saved, 2)


STUCK = having(RetryState(saved_step=20, ends_in_a_row=1, warm_failures_in_a_row=0), to_step=11)


def test_end_without_checkpoint_is_counted_and_delayed() -> None:
    exact = {"recovery.backoffSeconds": 100}

    found = ended(Cause.STALLED, STUCK, exact)

    assert found.status.restarts.since_progress == 1
    retry = found.status.restart_state.retry
    assert (retry.ends_in_a_row, retry.warm_failures_in_a_row) == (2, 1)
    assert retry.next_retry_time is not None
    assert 90 <= (retry.next_retry_time - T0).total_seconds() <= 110
    assert retry.saved_step == 20
    again = ended(Cause.STALLED, having(retry, status=STUCK), exact)
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
def test_warm_failures_are_attributed_to_cluster_if_possible(
    cause: Cause, is_counted: bool, in_a_row: int
) -> None:
    before = RetryState(saved_step=20, warm_failures_in_a_row=1)

    found = ended(cause, having(before, status=STUCK))

    assert found.status.restart_state.retry.warm_failures_in_a_row == in_a_row
    assert found.status.restarts.since_progress == int(is_counted)


@pytest.mark.parametrize(("to_step", "in_a_row"), [(11, 2), (12, 1)])
def test_new_step_resets_warm_failures(to_step: int, in_a_row: int) -> None:
    before = RetryState(saved_step=20, warm_failures_in_a_row=1)
    older = [*RUNS.attempts, replace(EARLIER, to_step=3)]

    found = ended(
        Cause.STALLED, having(before, status=replace(RUNS, attempts=older), to_step=to_step)
    )

    assert found.status.restart_state.retry.warm_failures_in_a_row == in_a_row


@pytest.mark.parametrize(("to_step", "in_a_row"), [(0, 2), (1, 1)])
def test_first_step_resets_warm_failures(to_step: int, in_a_row: int) -> None:
    before = RetryState(saved_step=20, warm_failures_in_a_row=1)
    alone = replace(RUNS, attempts=[replace(RUNNING, to_step=to_step)])

    found = ended(Cause.STALLED, having(before, status=alone))

    assert found.status.restart_state.retry.warm_failures_in_a_row == in_a_row


@pytest.mark.parametrize(("since", "is_over"), [(2, False), (3, True)])
def test_budget_is_exhausted_after_max_restarts(since: int, is_over: bool) -> None:
    status = replace(STUCK, restarts=RestartCounts(since_progress=since))

    found = ended(Cause.STALLED, status, {"recovery.maxRestarts": 3})

    value, reason, message = told(found.status, ConditionType.FAILED)
    assert (value == "True", reason == "RestartBudgetExhausted") == (is_over, is_over)
    if is_over:
        assert message == "3 restarts without a new checkpoint; last cause Stalled: on purpose"
        assert found.requeue_after == 0.0


# The same end again


def ends(*at: int, cause: Cause = Cause.NON_FINITE) -> JobStatus:
    older = [AttemptRecord(number=1, cause=cause, to_step=step) for step in at]
    return replace(STUCK, attempts=[replace(RUNNING, to_step=27), *older])


def test_second_non_finite_loss_skips_step() -> None:
    found = ended(Cause.NON_FINITE, ends(27))

    remedies = found.status.restart_state.remedies
    assert (remedies.skipped_steps, remedies.rejected_checkpoints) == ([28], ["/20"])
    assert told(found.status, ConditionType.PROGRESSING)[2] == (
        "NonFinite: on purpose (deterministic: 2 attempts ended this way after step 27)"
    )


@pytest.mark.parametrize(
    ("cause", "earlier"), [(Cause.STALLED, [27]), (Cause.NON_FINITE, []), (Cause.NON_FINITE, [26])]
)
def test_another_end_leaves_out_nothing(cause: Cause, earlier: list[int]) -> None:
    remedies = ended(cause, ends(*earlier, cause=cause)).status.restart_state.remedies
    assert (remedies.skipped_steps, remedies.rejected_checkpoints) == ([], [])


def test_skipped_step_without_checkpoint_rejects_none() -> None:
    found = ended(Cause.NON_FINITE, replace(ends(27), checkpoint=None))
    remedies = found.status.restart_state.remedies
    assert (remedies.skipped_steps, remedies.rejected_checkpoints) == ([28], [])


def test_newest_skipped_steps_and_checkpoints_are_kept() -> None:
    full = Remedies(
        skipped_steps=[*range(100, 164)], rejected_checkpoints=[f"/{n}" for n in range(64)]
    )

    found = ended(Cause.NON_FINITE, having(full, status=ends(27)))

    remedies = found.status.restart_state.remedies
    assert remedies.skipped_steps == [*range(101, 164), 28]
    assert remedies.rejected_checkpoints == [*(f"/{n}" for n in range(1, 64)), "/20"]


@pytest.mark.parametrize(
    ("earlier", "is_over"), [([], False), ([27], False), ([27, 26], False), ([27, 27], True)]
)
def test_third_non_finite_loss_fails_job(earlier: list[int], is_over: bool) -> None:
    found = ended(Cause.NON_FINITE, ends(*earlier))
    assert (told(found.status, ConditionType.FAILED)[:2] == ("True", "NonFinite")) is is_over


@pytest.mark.parametrize("cause", [Cause.CUDA_OUT_OF_MEMORY, Cause.HOST_OUT_OF_MEMORY])
@pytest.mark.parametrize(("times", "is_over"), [(2, False), (3, True)])
def test_memory_that_runs_out_three_times_with_nothing_left_to_lower_ends_the_job(
    cause: Cause, times: int, is_over: bool
) -> None:
    status = ends(*[27] * (times - 1), cause=cause)

    found = ended(cause, status, {"recovery.onOutOfMemory": "Restart"})

    value, reason, message = told(found.status, ConditionType.FAILED)
    assert ((value, reason) == ("True", str(cause))) is is_over
    assert message.endswith("; no mitigation is left") is is_over


def test_out_of_memory_is_answered_by_a_remedy_that_is_recorded() -> None:
    given = Remedies(mitigations=["MicroBatchHalved"])
    status = having(given, status=ends(27, 27, cause=Cause.CUDA_OUT_OF_MEMORY))

    found = ended(Cause.CUDA_OUT_OF_MEMORY, status, short_of=Shortage.STEP)

    mitigations = found.status.restart_state.remedies.mitigations
    assert len(mitigations) == 2
    assert mitigations[0] == "MicroBatchHalved"
    assert told(found.status, ConditionType.FAILED)[0] == "Unknown"


@pytest.mark.parametrize("cause", [Cause.CUDA_OUT_OF_MEMORY, Cause.HOST_OUT_OF_MEMORY])
def test_out_of_memory_ends_a_job_that_asks_for_it(cause: Cause) -> None:
    asked = {"recovery.onOutOfMemory": "Fail"}
    assert told(ended(cause, changes=asked).status, ConditionType.FAILED)[1] == str(cause)
    other = ended(Cause.STALLED, changes=asked)
    assert told(other.status, ConditionType.FAILED)[0] == "Unknown"


# Blamed nodes


@pytest.mark.parametrize(("earlier", "is_left"), [(0, False), (1, True)])
def test_newly_avoided_node_is_reported_and_left(earlier: int, is_left: bool) -> None:
    counts = {"gpu-7": earlier} if earlier else {}
    status = having(Remedies(failures_by_node=counts, node_failed_at=T0))
    cluster = ClusterObserved(1, cause=Cause.WORKER_LOST, node="gpu-7")

    found = ended(Cause.WORKER_LOST, status, cluster=cluster)

    message = "WorkerLost: on purpose" + (
        "; node gpu-7 failed 2 times and is avoided if other nodes fit" if is_left else ""
    )
    assert told(found.status, ConditionType.PROGRESSING)[2] == message
    assert found.status.restart_state.remedies.failures_by_node == {"gpu-7": earlier + 1}
    assert needs_new_cluster(found.status) is is_left


# The end of a job


def test_failed_job_keeps_retry_annotation() -> None:
    scenario = make_scenario()
    scenario.retry("3")
    this = Round(scenario.job, Observed(), T0, RUNS, resolve(scenario.job, None))

    found = fail(this, Cause.DATA_ERROR, "no rows")

    assert told(found.status, ConditionType.FAILED) == ("True", "DataError", "no rows")
    for kind in (ConditionType.PROGRESSING, ConditionType.CLUSTER_READY):
        assert told(found.status, kind) == ("False", "Failed", "")
    assert (found.status.completion_time, found.status.retry) == (T0, "3")
    assert found.requeue_after == 0.0


def asked_again(value: str) -> str:
    scenario: Scenario = make_scenario()
    scenario.retry(value)
    return requested_retry(scenario.job)


def test_unprintable_retry_value_is_hashed() -> None:
    assert asked_again("x" * 64) == "x" * 64
    for value in ("x" * 65, "two\nlines"):
        assert asked_again(value) not in ("", value, value[:64])
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
    assert needs_new_cluster(having(retry, cause=cause)) is is_new


def test_job_without_attempt_needs_no_new_cluster() -> None:
    retry = RetryState(warm_failures_in_a_row=2)
    assert needs_new_cluster(JobStatus(restart_state=RestartState(retry=retry))) is False


# Delays


def test_backoff_doubles_up_to_maximum() -> None:
    assert [backoff(n, 100, 1000, "x") for n in (0, 1)] == [0.0, 0.0]
    delays = [backoff(n, 100, 1000, "x") for n in (2, 3, 4, 5, 6, 7)]
    shares = [delay / delays[0] for delay in delays]
    assert shares == pytest.approx([1.0, 2.0, 4.0, 8.0, 10.0, 10.0])


def test_delays_differ_by_their_key_by_a_tenth_to_either_side() -> None:
    # A key of 400 comes near the ends of what a hash can give.
    delays = [backoff(2, 1000, 1000, f"job/{n}") for n in range(400)]
    assert 900 <= min(delays) < 905
    assert 1095 < max(delays) <= 1100
    assert backoff(2, 1000, 1000, "job/7") == delays[7]


def test_backoff_never_exceeds_max_delay() -> None:
    assert max_delay(RecoverySpec(max_backoff_seconds=360)) == pytest.approx(397.0)
