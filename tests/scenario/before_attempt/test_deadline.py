"""`activeDeadlineSeconds` and `queueSeconds`: which waiting times count against them."""

from dataclasses import replace
from datetime import timedelta

import pytest

from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import ConditionType, Phase
from raggrpo_operator.core.lifecycle.deadlines.active_deadline import paused_at_last_observation
from raggrpo_operator.core.state.conditions import get_condition
from raggrpo_operator.core.state.observed_time import RECORD_SECONDS
from support.fakes.fake_runtime import CRASH, T0, Scenario, make_scenario, until_step

LONG_DEADLINES = {
    "recovery.deadlines": {"provisioningSeconds": 86_400, "preflightSeconds": 86_400},
}
HOUR = timedelta(hours=1)


def ended_after(scenario: Scenario) -> float:
    assert scenario.status.phase is Phase.FAILED
    assert scenario.condition(ConditionType.FAILED)[1] == Cause.DEADLINE_EXCEEDED
    return (scenario.runtime.now - T0).total_seconds()


@pytest.mark.row("B11")
async def test_waiting_for_node_counts_against_active_deadline() -> None:
    scenario = make_scenario(
        changes=LONG_DEADLINES | {"activeDeadlineSeconds": 60}, cluster_seconds=1e6
    )

    await scenario.until_quiet()

    assert 60 < ended_after(scenario) < 65
    assert scenario.attempts[0].cause is Cause.DEADLINE_EXCEEDED
    assert (
        "the job exceeded activeDeadlineSeconds (60 s)"
        in scenario.condition(ConditionType.FAILED)[2]
    )
    assert "its pods are not ready" in scenario.condition(ConditionType.FAILED)[2]


async def test_waiting_preflight_counts_against_active_deadline() -> None:
    scenario = make_scenario(
        changes=LONG_DEADLINES | {"activeDeadlineSeconds": 60}, preflights=["hangs"]
    )

    await scenario.until_quiet()

    assert 60 < ended_after(scenario) < 70
    assert scenario.attempts == []


@pytest.mark.row("B11")
async def test_restart_delays_count_against_active_deadline() -> None:
    faults = {(n, 5): CRASH for n in range(1, 9)}
    changes = {"activeDeadlineSeconds": 600, "recovery.backoffSeconds": 3600}
    scenario = make_scenario(faults, changes | {"recovery.maxBackoffSeconds": 3600})

    await scenario.until_quiet()

    assert 600 < ended_after(scenario) < 605


@pytest.mark.row("B11")
async def test_suspension_does_not_count_against_active_deadline() -> None:
    scenario = make_scenario(changes={"activeDeadlineSeconds": 600})
    await until_step(scenario, 23)
    scenario.edit({"activeDeadlineSeconds": 600, "suspend": True})
    await scenario.until_quiet()

    scenario.runtime.now += 9 * HOUR
    scenario.edit({"activeDeadlineSeconds": 600})
    await scenario.until_quiet()

    assert scenario.status.phase is Phase.SUCCEEDED


async def test_active_time_recorded_by_earlier_release_counts_against_active_deadline() -> None:
    scenario = make_scenario(changes={"activeDeadlineSeconds": 600})
    await until_step(scenario, 23)
    state = scenario.status.restart_state
    spent = replace(state.spent, active_seconds=590, counted_since=None, counted_seconds=0)
    status = replace(scenario.status, restart_state=state.with_group(spent))
    scenario.job = scenario.job.model_copy(update={"status": status})

    await scenario.until_quiet()

    assert ended_after(scenario) < 60


async def test_time_after_killed_local_run_does_not_count_against_active_deadline() -> None:
    scenario = make_scenario(changes={"activeDeadlineSeconds": 600})
    await until_step(scenario, 35)
    used = (scenario.runtime.now - T0).total_seconds()

    scenario.runtime.now += 9 * HOUR
    scenario.runtime.lose_head()
    scenario.job = scenario.job.model_copy(
        update={"status": paused_at_last_observation(scenario.status)}
    )
    await scenario.round()

    counted = scenario.status.restart_state.spent.counted_seconds
    assert used - RECORD_SECONDS - 5 <= counted <= used
    await scenario.until_quiet()
    assert scenario.status.phase is Phase.SUCCEEDED


@pytest.mark.row("B11")
@pytest.mark.parametrize("preempted_at", [None, 23])
async def test_queue_seconds_limits_time_in_queue(preempted_at: int | None) -> None:
    changes = {"recovery.deadlines": {"queueSeconds": 3600}, "activeDeadlineSeconds": 600}
    scenario = make_scenario(changes=changes)
    if preempted_at is None:
        scenario.runtime.queue = "waits in queue research"
    else:
        await until_step(scenario, preempted_at)
        scenario.runtime.preempt()
    await scenario.until(lambda status: status.phase is Phase.QUEUED)
    since = get_condition(scenario.status, ConditionType.SUSPENDED).last_transition_time
    assert since is not None

    await scenario.until_quiet()

    waited = (scenario.runtime.now - since).total_seconds()
    assert 3600 <= waited < 3610
    assert scenario.attempts[-1].cause is Cause.UNSCHEDULABLE
    message = scenario.condition(ConditionType.FAILED)[2]
    assert "waits in queue research" in message
    assert "recovery.deadlines.queueSeconds" in message
