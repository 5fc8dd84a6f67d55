"""The container of an agent during the lifecycle of a job."""

from dataclasses import replace
from datetime import timedelta

import pytest

from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import ConditionType, Phase
from raggrpo_api.status.reasons import ConditionReason
from raggrpo_api.trainer.preflight import Check, CheckId, CheckState, PreflightResult
from raggrpo_operator.core.lifecycle.actions import (
    ApplyServices,
    CreateCluster,
    StartAgent,
    StopAgent,
    SubmitAttempt,
)
from raggrpo_operator.core.lifecycle.observed import ServiceObserved
from support.builders.operator.jobs import KNOWN_TINY
from support.fakes.fake_runtime import CRASH, Scenario, causes, make_scenario, make_scenario_job

AGENT = {"type": "Container", "identify": "Trace", "container": {"image": "app:1"}}
CONTAINER = {"rollout.agent": AGENT}
SHORT = {"recovery.deadlines": {"preflightSeconds": 30, "provisioningSeconds": 60}}
DOWN = ServiceObserved("agent", "http://agent", problem="exited with exit code 1: no module app")


def agent(scenario: Scenario) -> ServiceObserved:
    observed = scenario.runtime.agent
    assert observed is not None
    return observed


def change_image(scenario: Scenario) -> None:
    """Change the image of the container to app:2."""
    changed = AGENT | {"container": {"image": "app:2"}}
    spec = make_scenario_job({"rollout.agent": changed}).spec
    metadata = scenario.job.metadata.model_copy(update={"generation": 2})
    scenario.job = scenario.job.model_copy(update={"spec": spec, "metadata": metadata})


@pytest.mark.row("F2")
async def test_agent_starts_before_cluster_and_stops_with_job() -> None:
    scenario = make_scenario(changes=CONTAINER)

    await scenario.until_quiet()

    assert scenario.status.phase is Phase.SUCCEEDED
    assert scenario.condition(ConditionType.AGENT_SERVICE_READY) == ("True", "Ready", "agent")
    order = [type(each) for each in scenario.runtime.performed]
    assert order.index(StartAgent) < order.index(CreateCluster)
    assert (order.count(StartAgent), order.count(StopAgent)) == (1, 1)


async def test_attempt_waits_for_agent_and_reports_its_problem() -> None:
    scenario = make_scenario(changes=CONTAINER)
    await scenario.until(lambda _: scenario.count(StartAgent) == 1)
    ready = agent(scenario)
    scenario.runtime.agent = replace(DOWN, spec_hash=ready.spec_hash)
    until = scenario.runtime.now + timedelta(seconds=30)

    await scenario.until(lambda _: scenario.runtime.now >= until)

    condition = scenario.condition(ConditionType.AGENT_SERVICE_READY)
    assert condition == ("False", "AgentNotReady", f"agent: {DOWN.problem}")
    assert scenario.count(CreateCluster) == 0
    scenario.runtime.agent = ready
    await scenario.until_quiet()
    assert causes(scenario) == [Cause.SUCCEEDED]


async def test_agent_not_ready_by_deadline_fails_job() -> None:
    scenario = make_scenario(changes=CONTAINER | SHORT)
    await scenario.until(lambda _: scenario.count(StartAgent) == 1)
    scenario.runtime.agent = replace(DOWN, spec_hash=agent(scenario).spec_hash)

    await scenario.until_quiet()

    status, reason, message = scenario.condition(ConditionType.FAILED)
    assert (status, reason) == ("True", "StartFailed")
    assert "the container of the agent was not ready within 60 s: agent: exited" in message


async def test_deleted_agent_is_recreated_during_attempt() -> None:
    scenario = make_scenario(changes=CONTAINER)
    await scenario.until(lambda status: status.progress.step >= 5)
    scenario.runtime.agent = None

    await scenario.until_quiet()

    assert causes(scenario) == [Cause.SUCCEEDED]
    assert scenario.count(StartAgent) == 2


async def test_agent_that_is_down_between_attempts_gets_full_deadline() -> None:
    scenario = make_scenario({(1, 27): CRASH}, changes=CONTAINER | SHORT)
    await scenario.until(lambda status: status.progress.step >= 26)
    ready = agent(scenario)
    scenario.runtime.agent = replace(DOWN, spec_hash=ready.spec_hash)
    await scenario.until(
        lambda _: scenario.condition(ConditionType.AGENT_SERVICE_READY)[0] == "False"
    )
    until = scenario.runtime.now + timedelta(seconds=45)
    await scenario.until(lambda _: scenario.runtime.now >= until)
    scenario.runtime.agent = ready

    await scenario.until_quiet()

    assert causes(scenario)[-1] is Cause.SUCCEEDED


async def test_changed_agent_is_replaced_before_next_attempt_only() -> None:
    scenario = make_scenario({(1, 27): CRASH}, changes=CONTAINER)
    await scenario.until(lambda status: status.progress.step >= 5)
    old = agent(scenario).spec_hash
    change_image(scenario)

    await scenario.until(lambda status: status.progress.step >= 20)
    assert agent(scenario).spec_hash == old
    await scenario.until_quiet()

    starts = [each for each in scenario.runtime.performed if isinstance(each, StartAgent)]
    assert [each.container.image for each in starts] == ["app:1", "app:2"]
    assert causes(scenario)[-1] is Cause.SUCCEEDED


async def test_agent_of_older_template_is_not_ready() -> None:
    scenario = make_scenario({(1, 27): CRASH}, changes=CONTAINER)
    await scenario.until(lambda status: status.progress.step >= 5)
    old = agent(scenario)
    change_image(scenario)
    scenario.runtime.keeps_agent = True  # the runtime still observes the replaced container
    await scenario.until(lambda _: scenario.count(StartAgent) > 1)
    until = scenario.runtime.now + timedelta(seconds=30)

    await scenario.until(lambda _: scenario.runtime.now >= until)

    assert scenario.condition(ConditionType.AGENT_SERVICE_READY)[:2] == ("False", "AgentNotReady")
    assert len(causes(scenario)) == 1
    assert agent(scenario) == old
    scenario.runtime.keeps_agent = False
    await scenario.until_quiet()
    assert causes(scenario)[-1] is Cause.SUCCEEDED


async def test_missing_services_are_created_before_agent_and_during_attempt() -> None:
    scenario = make_scenario(changes=CONTAINER)
    scenario.runtime.has_services = False
    await scenario.until(lambda status: status.progress.step >= 5)
    order = [type(each) for each in scenario.runtime.performed]
    assert order.index(ApplyServices) < order.index(StartAgent)
    scenario.runtime.has_services = False

    await scenario.until_quiet()

    assert causes(scenario) == [Cause.SUCCEEDED]
    assert scenario.count(ApplyServices) == 2


@pytest.mark.parametrize("problem", [DOWN, None], ids=["down", "deleted"])
async def test_submission_waits_until_agent_is_ready(problem: ServiceObserved | None) -> None:
    scenario = make_scenario(changes=CONTAINER)
    scenario.runtime.cluster_seconds = 30
    await scenario.until(lambda _: scenario.count(CreateCluster) == 1)
    ready = agent(scenario)
    scenario.runtime.keeps_agent = True
    scenario.runtime.agent = problem and replace(problem, spec_hash=ready.spec_hash)
    until = scenario.runtime.now + timedelta(seconds=90)

    await scenario.until(lambda _: scenario.runtime.now >= until)

    assert scenario.count(SubmitAttempt) == 0
    assert scenario.condition(ConditionType.AGENT_SERVICE_READY)[0] == "False"
    scenario.runtime.agent = ready
    await scenario.until_quiet()
    assert causes(scenario) == [Cause.SUCCEEDED]
    submitted = [each for each in scenario.runtime.performed if isinstance(each, SubmitAttempt)]
    assert submitted[0].config.rollout.agent is not None
    assert submitted[0].config.rollout.agent.url.startswith(ready.address)


async def test_agent_not_ready_at_submission_gets_full_deadline_and_fails_job() -> None:
    scenario = make_scenario(changes=CONTAINER | SHORT)
    scenario.runtime.cluster_seconds = 50
    await scenario.until(lambda _: scenario.count(CreateCluster) == 1)
    created, ready = scenario.runtime.now, agent(scenario)
    scenario.runtime.agent = replace(DOWN, spec_hash=ready.spec_hash)
    await scenario.until(lambda _: scenario.runtime.now >= created + timedelta(seconds=100))
    scenario.runtime.agent = ready
    await scenario.until(lambda status: status.progress.step >= 1)
    assert causes(scenario) == [None]

    again = make_scenario(changes=CONTAINER | SHORT)
    await again.until(lambda _: again.count(CreateCluster) == 1)
    again.runtime.agent = replace(DOWN, spec_hash=ready.spec_hash)
    await again.until_quiet()

    status, reason, message = again.condition(ConditionType.FAILED)
    assert (status, reason) == ("True", "StartFailed")
    assert "was not ready within 60 s: agent: exited" in message
    assert causes(again) == [Cause.START_FAILED]


async def test_agent_that_is_not_ready_during_attempt_is_reported() -> None:
    scenario = make_scenario(changes=CONTAINER)
    await scenario.until(lambda status: status.progress.step >= 5)
    ready = agent(scenario)
    pull = "pod agent-x: ImagePullBackOff: app:1"
    scenario.runtime.agent = replace(
        DOWN, spec_hash="", problem=pull, reason=ConditionReason.IMAGE_PULL_FAILED
    )
    await scenario.until(lambda status: status.progress.step >= 10)

    status, reason, message = scenario.condition(ConditionType.AGENT_SERVICE_READY)
    assert (status, reason) == ("False", "ImagePullFailed")
    assert message.startswith(f"agent: {pull}; correct rollout.agent.container.image")
    scenario.runtime.agent = replace(ready, restarts=3)
    await scenario.until_quiet()

    condition = scenario.condition(ConditionType.AGENT_SERVICE_READY)
    assert condition == ("True", "Ready", "agent (restarts: 3)")
    assert causes(scenario) == [Cause.SUCCEEDED]


async def test_image_of_agent_that_cannot_be_pulled_fails_job() -> None:
    scenario = make_scenario(changes=CONTAINER)
    await scenario.until(lambda _: scenario.count(StartAgent) == 1)
    scenario.runtime.agent = replace(
        DOWN,
        spec_hash=agent(scenario).spec_hash,
        problem="pod agent-x: ImagePullBackOff: app:1",
        reason=ConditionReason.IMAGE_PULL_FAILED,
        cause=Cause.START_FAILED,
    )

    await scenario.until_quiet()

    status, reason, message = scenario.condition(ConditionType.FAILED)
    assert (status, reason) == ("True", "StartFailed")
    assert "pod agent-x: ImagePullBackOff: app:1; correct rollout.agent.container.image" in message


async def test_preflight_condition_reports_that_agent_was_not_evaluated() -> None:
    scenario = make_scenario(changes=CONTAINER)
    evidence = "the container starts after preflight"
    check = Check(id=CheckId.AGENT_READY, state=CheckState.NOT_EVALUATED, evidence=evidence)
    scenario.runtime.preflight_result = PreflightResult(facts=KNOWN_TINY, checks=[check])

    await scenario.until(lambda status: status.progress.step >= 1)

    condition = scenario.condition(ConditionType.PREFLIGHT_PASSED)
    assert condition == ("True", "Passed", f"AgentReady was not evaluated: {evidence}")
