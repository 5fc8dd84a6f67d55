from datetime import timedelta

import pytest

from raggrpo_api.status.attempts import Tier
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import ConditionType, Phase
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_operator.core.lifecycle.actions import CreateCluster, DeleteCluster, StopAttempt
from raggrpo_operator.core.lifecycle.observed import SubmissionStatus
from support.fakes.fake_runtime import make_scenario, until_step

QUEUE = "waits in queue research"
SHORT = {"recovery.deadlines": {"provisioningSeconds": 60}}


@pytest.mark.row("B12")
async def test_queued_job_waits_without_deadline() -> None:
    scenario = make_scenario(changes=SHORT, queue=QUEUE)

    await scenario.until(lambda status: status.phase is Phase.QUEUED)
    assert await scenario.round() is None
    assert scenario.condition(ConditionType.SUSPENDED) == ("True", "Queued", QUEUE)
    assert scenario.condition(ConditionType.READY)[0] == "False"
    scenario.runtime.now += timedelta(hours=5)
    assert await scenario.round() is None
    scenario.runtime.admit()
    await scenario.until_quiet()

    assert scenario.status.phase is Phase.SUCCEEDED
    assert scenario.submitted == [1]
    assert scenario.condition(ConditionType.SUSPENDED)[:2] == ("False", "Admitted")
    assert scenario.count(CreateCluster) == scenario.count(DeleteCluster) == 1


async def test_queue_time_does_not_count_against_provisioning_deadline() -> None:
    """This holds even if the queue's message changes, and is observed, each second."""
    scenario = make_scenario(changes=SHORT, queue=QUEUE)
    await scenario.until(lambda status: status.phase is Phase.QUEUED)
    for position in range(20, 0, -1):  # longer than the deadline, shorter than an unwatched gap
        scenario.runtime.now += timedelta(seconds=5)
        scenario.runtime.queue = f"waits at position {position}"
        await scenario.round()
    scenario.runtime.admit()
    await scenario.until_quiet()

    assert [each.cause for each in scenario.attempts] == [Cause.SUCCEEDED]


async def test_rounds_while_queued_do_not_write_status() -> None:
    scenario = make_scenario(queue=QUEUE)
    await scenario.until(lambda status: status.phase is Phase.QUEUED)
    await scenario.round()
    written = len(scenario.runtime.statuses)

    for _ in range(3):
        scenario.runtime.now += timedelta(minutes=5)
        await scenario.round()

    assert len(scenario.runtime.statuses) == written


@pytest.mark.row("B12")
async def test_preempted_job_resumes_without_using_restart_budget() -> None:
    scenario = make_scenario(changes={"recovery.maxRestarts": 0})
    for step in (23, 37):
        await until_step(scenario, step)
        scenario.runtime.preempt()
        await scenario.until(lambda status: status.phase is Phase.QUEUED)
        assert scenario.attempts[0].cause is Cause.PREEMPTED
        scenario.runtime.now += timedelta(hours=1)
        scenario.runtime.admit()

    await scenario.until_quiet()

    causes = [record.cause for record in scenario.attempts]
    assert causes == [Cause.PREEMPTED, Cause.PREEMPTED, Cause.SUCCEEDED]
    assert [record.from_step for record in scenario.attempts][1:] == [23, 37]
    assert [record.tier for record in scenario.attempts][1:] == [Tier.NEW_CLUSTER] * 2
    assert scenario.status.restarts.since_progress == 0
    assert scenario.count(CreateCluster) == 1, "a new RayCluster would go to the end of the queue"


async def test_phases_do_not_oscillate_during_preemption() -> None:
    scenario = make_scenario()
    await until_step(scenario, 23)
    seen = len(scenario.runtime.statuses)
    scenario.runtime.preempt()
    await scenario.until(lambda status: status.phase is Phase.QUEUED)
    await scenario.round()
    await scenario.round()
    scenario.runtime.admit()

    await scenario.until_quiet()

    phases = [status.phase for status in scenario.runtime.statuses[seen:]]
    assert list(dict.fromkeys(phases)) == [
        Phase.QUEUED,
        Phase.PROVISIONING,
        Phase.STARTING,
        Phase.RUNNING,
        Phase.SUCCEEDED,
    ]
    assert phases == sorted(phases, key=list(dict.fromkeys(phases)).index)


@pytest.mark.parametrize(
    "code", [ExitCode.PREEMPTED, ExitCode.TRAINER_RANK_LOST, ExitCode.PROGRAM_ERROR]
)
async def test_driver_exit_during_preemption_has_cause_preempted(
    code: ExitCode,
) -> None:
    scenario = make_scenario(changes={"recovery.maxRestarts": 0})
    await until_step(scenario, 23)
    attempt = scenario.runtime.attempt
    assert attempt is not None

    scenario.runtime.queue = QUEUE
    attempt.status, attempt.exit_code = SubmissionStatus.FAILED, code
    await scenario.until(lambda status: status.attempts[0].number == 2)

    assert scenario.attempts[0].cause is Cause.PREEMPTED
    assert scenario.status.phase is Phase.QUEUED


async def test_preempted_driver_is_not_stopped_while_saving() -> None:
    scenario = make_scenario()
    await until_step(scenario, 23)

    scenario.runtime.queue = QUEUE
    for _ in range(3):
        await scenario.round()

    assert scenario.status.phase is Phase.QUEUED
    assert scenario.condition(ConditionType.READY)[0] == "False"
    assert scenario.attempts[0].cause is None
    assert scenario.count(StopAttempt) == 0


async def test_suspended_job_leaves_queue() -> None:
    scenario = make_scenario(queue=QUEUE)
    await scenario.until(lambda status: status.phase is Phase.QUEUED)

    scenario.edit({"suspend": True})
    await scenario.until_quiet()

    assert scenario.status.phase is Phase.SUSPENDED
    assert scenario.count(DeleteCluster) == 1
    reasons = {
        condition.reason
        for status in scenario.runtime.statuses
        for condition in status.conditions
        if condition.type is ConditionType.SUSPENDED
    }
    assert "Admitted" not in reasons


@pytest.mark.row("B11")
async def test_queue_time_does_not_count_against_active_deadline() -> None:
    scenario = make_scenario(changes={"activeDeadlineSeconds": 600})
    await until_step(scenario, 23)
    scenario.runtime.preempt()
    await scenario.until(lambda status: status.phase is Phase.QUEUED)

    scenario.runtime.now += timedelta(hours=5)
    scenario.runtime.admit()
    await scenario.until_quiet()

    assert scenario.status.phase is Phase.SUCCEEDED


async def test_head_loss_right_after_readmission_has_cause_preempted() -> None:
    scenario = make_scenario(changes={"recovery.maxRestarts": 0})
    await until_step(scenario, 23)
    scenario.runtime.queue = QUEUE
    await scenario.round()
    scenario.runtime.admit()
    scenario.runtime.lose_head()

    await scenario.until_quiet()

    assert [record.cause for record in scenario.attempts] == [Cause.PREEMPTED, Cause.SUCCEEDED]


async def test_cluster_is_replaced_after_pod_eviction_without_queue() -> None:
    scenario = make_scenario(changes={"recovery.maxRestarts": 0})
    await until_step(scenario, 23)
    before = scenario.status.restart_state.launch.cluster_since
    scenario.runtime.now += timedelta(minutes=1)
    scenario.runtime.lose_head(Cause.PREEMPTED, "head pod: EvictionByEvictionAPI")
    settled = await scenario.until(lambda status: status.attempts[0].cause is Cause.PREEMPTED)

    assert settled.restart_state.launch.cluster_since == before, "the loss would not be counted"
    await scenario.until_quiet()
    assert scenario.count(CreateCluster) == 2
    assert [each.cause for each in scenario.attempts] == [Cause.PREEMPTED, Cause.SUCCEEDED]


async def test_cluster_timer_is_reset_by_preemption_and_readmission() -> None:
    scenario = make_scenario()
    await until_step(scenario, 23)
    since = scenario.status.restart_state.launch.cluster_since
    assert since is not None
    scenario.runtime.preempt()
    settled = await scenario.until(lambda status: status.attempts[0].cause is Cause.PREEMPTED)
    taken = settled.restart_state.launch.cluster_since
    assert taken is not None
    assert taken >= since + timedelta(seconds=23), "the next attempt would count them as lost"

    scenario.runtime.now += timedelta(hours=1)
    scenario.runtime.admit()
    await scenario.round()

    admitted = scenario.status.restart_state.launch.cluster_since
    assert admitted is not None
    assert admitted >= taken + timedelta(hours=1)
