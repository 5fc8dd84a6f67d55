"""How long a job may take and how long it may wait for capacity: whose clock runs when."""

from dataclasses import replace
from datetime import timedelta

import pytest

from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import ConditionType, Phase
from raggrpo_operator.core.lifecycle.deadline import stopped_when_last_seen
from raggrpo_operator.core.state.clocks import LOOK_SECONDS
from raggrpo_operator.core.state.conditions import get_condition
from support.fakes.fake_runtime import CRASH, T0, Story, a_story, until_step

PATIENT = {
    "recovery.deadlines": {"provisioningSeconds": 86_400, "preflightSeconds": 86_400},
}
HOUR = timedelta(hours=1)


def ended_after(story: Story) -> float:
    assert story.status.phase is Phase.FAILED
    assert story.condition(ConditionType.FAILED)[1] == Cause.DEADLINE_EXCEEDED
    return (story.runtime.now - T0).total_seconds()


@pytest.mark.row("B11")
async def test_pods_that_wait_for_a_node_use_the_deadline_up() -> None:
    story = a_story(changes=PATIENT | {"activeDeadlineSeconds": 60}, cluster_seconds=1e6)

    await story.until_quiet()

    assert 60 < ended_after(story) < 65
    assert story.attempts[0].cause is Cause.DEADLINE_EXCEEDED
    assert "activeDeadlineSeconds 60 is over" in story.condition(ConditionType.FAILED)[2]
    assert "its pods are not ready" in story.condition(ConditionType.FAILED)[2]


async def test_a_preflight_that_waits_for_a_node_uses_it_up_too() -> None:
    story = a_story(changes=PATIENT | {"activeDeadlineSeconds": 60}, preflights=["hangs"])

    await story.until_quiet()

    assert 60 < ended_after(story) < 70
    assert story.attempts == []


@pytest.mark.row("B11")
async def test_delays_between_attempts_use_it_up() -> None:
    faults = {(n, 5): CRASH for n in range(1, 9)}
    changes = {"activeDeadlineSeconds": 600, "recovery.backoffSeconds": 3600}
    story = a_story(faults, changes | {"recovery.maxBackoffSeconds": 3600})

    await story.until_quiet()

    assert 600 < ended_after(story) < 605


@pytest.mark.row("B11")
async def test_a_suspended_night_uses_nothing_up() -> None:
    story = a_story(changes={"activeDeadlineSeconds": 600})
    await until_step(story, 23)
    story.edit({"activeDeadlineSeconds": 600, "suspend": True})
    await story.until_quiet()

    story.runtime.now += 9 * HOUR
    story.edit({"activeDeadlineSeconds": 600})
    await story.until_quiet()

    assert story.status.phase is Phase.SUCCEEDED


async def test_a_job_that_an_earlier_release_began_keeps_the_time_it_has_used() -> None:
    story = a_story(changes={"activeDeadlineSeconds": 600})
    await until_step(story, 23)
    state = story.status.restart_state
    spent = replace(state.spent, active_seconds=590, counted_since=None, counted_seconds=0)
    status = replace(story.status, restart_state=state.having(spent))
    story.job = story.job.model_copy(update={"status": status})

    await story.until_quiet()

    assert ended_after(story) < 60


async def test_a_run_on_one_machine_that_was_killed_has_used_nothing_up_overnight() -> None:
    story = a_story(changes={"activeDeadlineSeconds": 600})
    await until_step(story, 35)
    used = (story.runtime.now - T0).total_seconds()

    story.runtime.now += 9 * HOUR
    story.runtime.lose_head()
    story.job = story.job.model_copy(update={"status": stopped_when_last_seen(story.status)})
    await story.round()

    counted = story.status.restart_state.spent.counted_seconds
    assert used - LOOK_SECONDS - 5 <= counted <= used
    await story.until_quiet()
    assert story.status.phase is Phase.SUCCEEDED


@pytest.mark.row("B11")
@pytest.mark.parametrize("preempted_at", [None, 23])
async def test_a_queue_is_waited_for_as_long_as_its_field_says(preempted_at: int | None) -> None:
    changes = {"recovery.deadlines": {"queueSeconds": 3600}, "activeDeadlineSeconds": 600}
    story = a_story(changes=changes)
    if preempted_at is None:
        story.runtime.queue = "waits in queue research"
    else:
        await until_step(story, preempted_at)
        story.runtime.preempt()
    await story.until(lambda status: status.phase is Phase.QUEUED)
    since = get_condition(story.status, ConditionType.SUSPENDED).last_transition_time
    assert since is not None

    await story.until_quiet()

    waited = (story.runtime.now - since).total_seconds()
    assert 3600 <= waited < 3610
    assert story.attempts[-1].cause is Cause.UNSCHEDULABLE
    message = story.condition(ConditionType.FAILED)[2]
    assert "waits in queue research" in message
    assert "recovery.deadlines.queueSeconds" in message
