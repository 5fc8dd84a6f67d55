"""Number of status writes and Events of an undisturbed job."""

from dataclasses import replace
from datetime import timedelta

import pytest

from raggrpo_api.status.conditions import Phase
from raggrpo_operator.core.lifecycle.actions import StartPreflight, SubmitAttempt
from raggrpo_operator.core.lifecycle.decide import decide
from raggrpo_operator.core.lifecycle.observed import ClusterObserved
from support.builders.operator.rounds import notes
from support.fakes.fake_runtime import make_scenario


async def test_job_start_needs_one_status_write_per_action() -> None:
    scenario = make_scenario()
    await scenario.until(lambda _: scenario.count(SubmitAttempt) == 1)

    assert len(scenario.runtime.statuses) == 3


@pytest.mark.parametrize(("seconds", "is_written"), [(3, False), (15, True)])
async def test_unobserved_preflight_changes_status_only_after_grace_period(
    seconds: int, is_written: bool
) -> None:
    scenario = make_scenario()
    await scenario.until(lambda _: scenario.count(StartPreflight) == 1)
    unobserved = replace(await scenario.runtime.observe(scenario.job), preflight=None)
    later = scenario.runtime.now + timedelta(seconds=seconds)

    again = decide(scenario.job, unobserved, later)

    assert [type(action) for action in again.actions] == [StartPreflight]
    since = scenario.status.restart_state.launch.waiting_since
    assert (again.status.restart_state.launch.waiting_since != since) is is_written


async def test_undisturbed_job_emits_one_event_per_transition() -> None:
    scenario = make_scenario()
    await scenario.until_quiet()

    assert scenario.status.phase is Phase.SUCCEEDED
    assert notes(scenario) == [
        "The spec is valid; preflight passed: 1 check",
        "Attempt 1 started on a new cluster from step 0",
        "First checkpoint saved: step 10",
        "Complete: reached step 60",
    ]


async def test_phase_becomes_running_after_head_was_unreachable() -> None:
    scenario = make_scenario()
    await scenario.until(lambda _: scenario.count(SubmitAttempt) == 1)
    observed = await scenario.runtime.observe(scenario.job)
    silent = replace(observed, cluster=ClusterObserved(1), attempt=None, progress=None)
    status = decide(scenario.job, silent, scenario.runtime.now).status
    scenario.job = scenario.job.model_copy(update={"status": status})

    await scenario.until(lambda status: status.progress.step >= 1)
    assert scenario.status.phase is Phase.RUNNING
