from datetime import timedelta

import pytest

from raggrpo_api.status.attempts import Tier
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import ConditionType, Phase
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_operator.core.lifecycle.actions import CreateCluster, DeleteCluster, StopAttempt
from raggrpo_operator.core.lifecycle.observed import SubmissionStatus
from support.fakes.fake_runtime import a_story, until_step

QUEUE = "waits in queue research"
SHORT = {"recovery.deadlines": {"provisioningSeconds": 60}}


@pytest.mark.row("B12")
async def test_a_queued_job_waits_for_hours_without_a_deadline_and_then_runs() -> None:
    story = a_story(changes=SHORT, queue=QUEUE)

    await story.until(lambda status: status.phase is Phase.QUEUED)
    assert await story.round() is None
    assert story.condition(ConditionType.SUSPENDED) == ("True", "Queued", QUEUE)
    assert story.condition(ConditionType.READY)[0] == "False"
    story.runtime.now += timedelta(hours=5)
    assert await story.round() is None
    story.runtime.admit()
    await story.until_quiet()

    assert story.status.phase is Phase.SUCCEEDED
    assert story.submitted == [1]
    assert story.condition(ConditionType.SUSPENDED)[:2] == ("False", "Admitted")
    assert story.count(CreateCluster) == story.count(DeleteCluster) == 1


async def test_time_in_the_queue_is_not_time_to_provision() -> None:
    """Even if the queue has something new to say all the time, so that each second is watched."""
    story = a_story(changes=SHORT, queue=QUEUE)
    await story.until(lambda status: status.phase is Phase.QUEUED)
    for position in range(20, 0, -1):  # longer than the deadline, shorter than an unwatched gap
        story.runtime.now += timedelta(seconds=5)
        story.runtime.queue = f"waits at position {position}"
        await story.round()
    story.runtime.admit()
    await story.until_quiet()

    assert [each.cause for each in story.attempts] == [Cause.SUCCEEDED]


async def test_a_round_while_queued_changes_nothing() -> None:
    story = a_story(queue=QUEUE)
    await story.until(lambda status: status.phase is Phase.QUEUED)
    await story.round()
    written = len(story.runtime.statuses)

    for _ in range(3):
        story.runtime.now += timedelta(minutes=5)
        await story.round()

    assert len(story.runtime.statuses) == written


@pytest.mark.row("B12")
async def test_a_preempted_job_resumes_where_it_saved_and_spends_no_budget() -> None:
    story = a_story(changes={"recovery.maxRestarts": 0})
    for step in (23, 37):
        await until_step(story, step)
        story.runtime.preempt()
        await story.until(lambda status: status.phase is Phase.QUEUED)
        assert story.attempts[0].cause is Cause.PREEMPTED
        story.runtime.now += timedelta(hours=1)
        story.runtime.admit()

    await story.until_quiet()

    causes = [record.cause for record in story.attempts]
    assert causes == [Cause.PREEMPTED, Cause.PREEMPTED, Cause.SUCCEEDED]
    assert [record.from_step for record in story.attempts][1:] == [23, 37]
    assert [record.tier for record in story.attempts][1:] == [Tier.NEW_CLUSTER] * 2
    assert story.status.restarts.since_progress == 0
    assert story.count(CreateCluster) == 1, "a new RayCluster would go to the end of the queue"


async def test_phases_of_a_preemption_do_not_flap() -> None:
    story = a_story()
    await until_step(story, 23)
    seen = len(story.runtime.statuses)
    story.runtime.preempt()
    await story.until(lambda status: status.phase is Phase.QUEUED)
    await story.round()
    await story.round()
    story.runtime.admit()

    await story.until_quiet()

    phases = [status.phase for status in story.runtime.statuses[seen:]]
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
async def test_whatever_a_driver_ends_with_while_its_pods_are_taken_is_a_preemption(
    code: ExitCode,
) -> None:
    story = a_story(changes={"recovery.maxRestarts": 0})
    await until_step(story, 23)
    attempt = story.runtime.attempt
    assert attempt is not None

    story.runtime.queue = QUEUE
    attempt.status, attempt.exit_code = SubmissionStatus.FAILED, code
    await story.until(lambda status: status.attempts[0].number == 2)

    assert story.attempts[0].cause is Cause.PREEMPTED
    assert story.status.phase is Phase.QUEUED


async def test_a_driver_that_still_saves_is_left_alone() -> None:
    story = a_story()
    await until_step(story, 23)

    story.runtime.queue = QUEUE
    for _ in range(3):
        await story.round()

    assert story.status.phase is Phase.QUEUED
    assert story.condition(ConditionType.READY)[0] == "False"
    assert story.attempts[0].cause is None
    assert story.count(StopAttempt) == 0


async def test_suspending_a_queued_job_leaves_the_queue() -> None:
    story = a_story(queue=QUEUE)
    await story.until(lambda status: status.phase is Phase.QUEUED)

    story.edit({"suspend": True})
    await story.until_quiet()

    assert story.status.phase is Phase.SUSPENDED
    assert story.count(DeleteCluster) == 1
    reasons = {
        condition.reason
        for status in story.runtime.statuses
        for condition in status.conditions
        if condition.type is ConditionType.SUSPENDED
    }
    assert "Admitted" not in reasons


@pytest.mark.row("B11")
async def test_time_in_the_queue_does_not_count_against_the_deadline() -> None:
    story = a_story(changes={"activeDeadlineSeconds": 600})
    await until_step(story, 23)
    story.runtime.preempt()
    await story.until(lambda status: status.phase is Phase.QUEUED)

    story.runtime.now += timedelta(hours=5)
    story.runtime.admit()
    await story.until_quiet()

    assert story.status.phase is Phase.SUCCEEDED


async def test_pods_that_go_only_after_the_next_admission_were_preempted() -> None:
    story = a_story(changes={"recovery.maxRestarts": 0})
    await until_step(story, 23)
    story.runtime.queue = QUEUE
    await story.round()
    story.runtime.admit()
    story.runtime.lose_head()

    await story.until_quiet()

    assert [record.cause for record in story.attempts] == [Cause.PREEMPTED, Cause.SUCCEEDED]


async def test_evicted_pods_that_no_queue_took_lead_to_a_new_cluster() -> None:
    story = a_story(changes={"recovery.maxRestarts": 0})
    await until_step(story, 23)
    before = story.status.restart_state.launch.cluster_since
    story.runtime.now += timedelta(minutes=1)
    story.runtime.lose_head(Cause.PREEMPTED, "head pod: EvictionByEvictionAPI")
    settled = await story.until(lambda status: status.attempts[0].cause is Cause.PREEMPTED)

    assert settled.restart_state.launch.cluster_since == before, "the loss would be forgotten"
    await story.until_quiet()
    assert story.count(CreateCluster) == 2
    assert [each.cause for each in story.attempts] == [Cause.PREEMPTED, Cause.SUCCEEDED]


async def test_losses_count_from_the_preemption_and_again_from_the_next_admission() -> None:
    story = a_story()
    await until_step(story, 23)
    began = story.status.restart_state.launch.cluster_since
    assert began is not None
    story.runtime.preempt()
    settled = await story.until(lambda status: status.attempts[0].cause is Cause.PREEMPTED)
    taken = settled.restart_state.launch.cluster_since
    assert taken is not None
    assert taken >= began + timedelta(seconds=23), "its pods would count as lost by the next"

    story.runtime.now += timedelta(hours=1)
    story.runtime.admit()
    await story.round()

    admitted = story.status.restart_state.launch.cluster_since
    assert admitted is not None
    assert admitted >= taken + timedelta(hours=1)
