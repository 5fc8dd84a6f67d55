"""Exclusion of nodes on which a job has failed repeatedly."""

from datetime import timedelta

import pytest

from raggrpo_api.status.attempts import Tier
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import Phase
from raggrpo_api.status.job_status import JobStatus
from raggrpo_operator.core.lifecycle.actions import CreateCluster
from raggrpo_operator.core.lifecycle.after_attempt.node_exclusion import avoided_nodes
from support.fakes.fake_runtime import CRASH, Attempt, FakeRuntime, Fault, Scenario, make_scenario


def fails_on(node: str, cause: Cause = Cause.WORKER_LOST) -> Fault:
    def fault(runtime: FakeRuntime, _: Attempt) -> None:
        runtime.lose_head(cause, "worker pod ended with exit code 139", node)

    return fault


def avoided(scenario: Scenario) -> list[str]:
    return list(avoided_nodes(scenario.status.restart_state.remedies, scenario.job.spec.recovery))


def created(scenario: Scenario) -> list[CreateCluster]:
    return [each for each in scenario.runtime.performed if isinstance(each, CreateCluster)]


@pytest.mark.row("B24")
async def test_node_with_two_failures_is_avoided_and_reported() -> None:
    scenario = make_scenario({(1, 15): fails_on("gpu-7"), (2, 25): fails_on("gpu-7")})

    await scenario.until(lambda status: len(status.attempts) == 2)
    assert avoided(scenario) == []
    await scenario.until_quiet()

    assert scenario.status.phase is Phase.SUCCEEDED
    assert avoided(scenario) == ["gpu-7"]
    assert [action.avoided_nodes for action in created(scenario)] == [(), (), ("gpu-7",)]
    assert "avoided" not in scenario.attempts[0].message
    messages = [c.message for status in scenario.runtime.statuses for c in status.conditions]
    assert any(
        "2 failures are attributed to node gpu-7, which is avoided while other nodes fit" in text
        for text in messages
    )


async def test_cluster_is_replaced_after_two_worker_failures_on_one_node() -> None:
    def loses_worker(runtime: FakeRuntime, _: Attempt) -> None:
        runtime.lose_worker("gpu-7")

    scenario = make_scenario({(1, 15): loses_worker, (2, 25): loses_worker})

    await scenario.until_quiet()

    assert scenario.status.phase is Phase.SUCCEEDED
    assert [action.avoided_nodes for action in created(scenario)] == [(), ("gpu-7",)]
    assert scenario.attempts[2].tier is Tier.NEW_CLUSTER


async def test_single_failure_per_node_does_not_exclude_nodes() -> None:
    scenario = make_scenario({(1, 15): fails_on("gpu-7"), (2, 25): fails_on("gpu-8")})

    await scenario.until_quiet()

    assert scenario.status.restart_state.remedies.failures_by_node == {"gpu-7": 1, "gpu-8": 1}
    assert avoided(scenario) == []


async def test_zero_limit_disables_node_exclusion() -> None:
    changes = {"recovery.excludeNodeAfterFailures": 0}
    scenario = make_scenario({(1, 15): fails_on("gpu-7"), (2, 25): fails_on("gpu-7")}, changes)

    await scenario.until_quiet()

    assert avoided(scenario) == []


DAY = timedelta(days=1)


@pytest.mark.row("B24")
async def test_infrequent_failures_do_not_exclude_node() -> None:
    scenario = make_scenario({(1, 15): fails_on("gpu-7"), (2, 16): fails_on("gpu-7")})
    await scenario.until(lambda status: len(status.attempts) == 2)

    scenario.runtime.now += 14 * DAY
    await scenario.until_quiet()

    assert scenario.status.phase is Phase.SUCCEEDED
    assert [action.avoided_nodes for action in created(scenario)] == [(), (), ()]
    assert scenario.status.restart_state.remedies.failures_by_node == {"gpu-7": 1}


@pytest.mark.row("B24")
async def test_node_failure_count_decreases_each_day() -> None:
    faults = {(n, 15): fails_on("gpu-7") for n in (1, 2, 3)}
    scenario = make_scenario(faults | {(4, 16): CRASH, (5, 17): fails_on("gpu-8")})

    await scenario.until(lambda _: scenario.submitted[-1:] == [4])
    scenario.runtime.now += timedelta(days=2, hours=1)
    await scenario.until_quiet()

    assert [action.avoided_nodes for action in created(scenario)][-2:] == [("gpu-7",), ()]
    assert scenario.status.restart_state.remedies.failures_by_node == {"gpu-7": 1, "gpu-8": 1}


@pytest.mark.row("B24")
async def test_node_failure_count_decreases_after_ten_checkpoints() -> None:
    faults = {(1, 15): fails_on("gpu-7"), (2, 125): fails_on("gpu-7")}
    scenario = make_scenario(faults, {"training.totalSteps": 140, "checkpoint.everySteps": 10})

    await scenario.until_quiet()

    assert scenario.status.phase is Phase.SUCCEEDED
    assert [action.avoided_nodes for action in created(scenario)] == [(), (), ()]


async def test_unschedulable_message_does_not_name_avoided_node() -> None:
    changes = {
        "recovery.excludeNodeAfterFailures": 1,
        "recovery.deadlines": {"provisioningSeconds": 60},
    }
    scenario = make_scenario({(1, 15): fails_on("gpu-7")}, changes)
    await scenario.until(lambda status: bool(status.restart_state.remedies.failures_by_node))
    scenario.runtime.cluster_seconds = 1e6

    status: JobStatus = await scenario.until_quiet()

    assert status.attempts[0].cause is Cause.UNSCHEDULABLE
    assert "gpu-7" not in status.attempts[0].message
