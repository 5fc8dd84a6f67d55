"""During a service outage, the step waits up to a deadline: no restart and no new cluster."""

from datetime import timedelta
from typing import Any

import pytest

from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import ConditionType, Phase
from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.preflight import Check, CheckId, CheckState, PreflightResult
from raggrpo_operator.core.lifecycle.actions import (
    CreateCluster,
    DeletePreflight,
    StartPreflight,
    StopAttempt,
    SubmitAttempt,
)
from raggrpo_operator.core.lifecycle.after_attempt.policies import POLICIES
from raggrpo_operator.core.lifecycle.before_attempt.preflight import OUTAGE_RETRY_SECONDS
from raggrpo_operator.core.lifecycle.during_attempt.follow import FOLLOW_SECONDS
from raggrpo_operator.core.text.status_text import render_status
from support.builders.operator.jobs import KNOWN_TINY
from support.fakes.fake_runtime import (
    CRASH,
    T0,
    FakeRuntime,
    Scenario,
    causes,
    exits,
    make_scenario_job,
    until_step,
)
from support.fakes.fake_service_outage import SERVICE_DOWN_RESULT, FakeServiceOutage, Interval

MINUTE = 60.0
POLL_SECONDS = 5.0


class PacedScenario(Scenario):
    """Scenario in which a running job is polled every 5 seconds, as in a cluster."""

    async def round(self) -> float | None:
        delay = await super().round()
        if delay == FOLLOW_SECONDS:
            self.runtime.now += timedelta(seconds=POLL_SECONDS - FOLLOW_SECONDS)
        return delay


def make_service_scenario(
    down: list[Interval], changes: dict[str, Any] | None = None, **environment: Any
) -> Scenario:
    return PacedScenario(make_scenario_job(changes), FakeServiceOutage(down=down, **environment))


def is_waiting(status: JobStatus) -> bool:
    conditions = (c for c in status.conditions if c.type is ConditionType.WAITING_FOR_ENDPOINT)
    return any(c.status == "True" for c in conditions)


@pytest.mark.row("D10")
async def test_outage_delays_job_without_restart() -> None:
    scenario = make_service_scenario([(40, 40 + 10 * MINUTE)])

    await scenario.until(is_waiting)
    condition = scenario.condition(ConditionType.WAITING_FOR_ENDPOINT)
    shown = render_status(scenario.status)
    await scenario.until_quiet()

    assert condition[1] == "EndpointDown"
    assert condition[2].startswith(
        "endpoint actor-8b since 2026-11-21T12:01:00+00:00: ConnectionRefused: Connect call failed"
    )
    assert "recovery.deadlines.outageSeconds" in condition[2]
    assert "waiting   for endpoint actor-8b since" in shown
    assert causes(scenario) == [Cause.SUCCEEDED]
    assert (scenario.count(CreateCluster), scenario.count(SubmitAttempt)) == (1, 1)
    assert scenario.status.restarts.total == scenario.status.restarts.since_progress == 0
    assert scenario.condition(ConditionType.WAITING_FOR_ENDPOINT)[:2] == (
        "False",
        "EndpointRecovered",
    )


async def test_waiting_time_ratio_is_reported_separately() -> None:
    calm, disturbed = make_service_scenario([]), make_service_scenario([(40, 40 + 10 * MINUTE)])

    await calm.until_quiet()
    await disturbed.until_quiet()

    [attempt] = disturbed.attempts
    assert 590 <= attempt.waiting_seconds <= 610
    assert 0.8 < float(disturbed.status.waiting_time_ratio) < 0.95
    assert calm.status.waiting_time_ratio == ""
    ratios = [float(s.status.effective_training_time_ratio) for s in (calm, disturbed)]
    assert abs(ratios[0] - ratios[1]) <= 0.05
    assert "of time spent waiting for services" in render_status(disturbed.status)


async def test_waiting_job_is_progressing_but_not_ready() -> None:
    scenario = make_service_scenario([(40, 40 + 10 * MINUTE)])

    await scenario.until(is_waiting)

    assert scenario.condition(ConditionType.READY)[0] == "False"
    assert scenario.condition(ConditionType.PROGRESSING)[:2] == ("True", "WaitingForEndpoint")
    assert scenario.status.phase is Phase.RUNNING


async def test_outage_deadline_fails_job_and_frees_cluster() -> None:
    changes = {"recovery.deadlines": {"outageSeconds": 300}}
    scenario = make_service_scenario([(40, 1e6)], changes)

    await scenario.until_quiet()

    assert causes(scenario) == [Cause.ENDPOINT_DOWN]
    status, reason, message = scenario.condition(ConditionType.FAILED)
    assert (status, reason) == ("True", "EndpointDown")
    assert "limit 300 s" in message
    assert "endpoint actor-8b since" in message
    assert 340 <= (scenario.runtime.now - T0).total_seconds() <= 400
    assert scenario.runtime._cluster is None
    assert not is_waiting(scenario.status)
    # The attempt has saved; a retry resumes from there.
    assert isinstance(scenario.runtime, FakeServiceOutage)
    scenario.runtime.down, step = [], max(scenario.runtime.saved)
    scenario.retry("the service runs again")
    await scenario.until_quiet()
    assert scenario.attempts[-1].from_step == step > 0
    assert scenario.status.phase is Phase.SUCCEEDED


async def test_raised_outage_deadline_applies_to_waiting_attempt() -> None:
    scenario = make_service_scenario([(40, 1000)], {"recovery.deadlines": {"outageSeconds": 300}})
    await scenario.until(is_waiting)

    scenario.edit({"recovery.deadlines": {"outageSeconds": 3600}})
    await scenario.until_quiet()

    assert causes(scenario) == [Cause.SUCCEEDED]


async def test_service_flapping_between_steps_does_not_exceed_outage_deadline() -> None:
    flaps = [(30.0 + 20 * i, 45.0 + 20 * i) for i in range(60)]
    scenario = make_service_scenario(flaps, {"recovery.deadlines": {"outageSeconds": 60}})

    await scenario.until_quiet()

    assert causes(scenario) == [Cause.SUCCEEDED]


@pytest.mark.row("D10")
async def test_service_flapping_within_one_step_exceeds_outage_deadline() -> None:
    class FlappingOutage(FakeServiceOutage):
        def _move(self) -> None:
            was_down, self.down = self.down, [(40.0, 1e9)]
            super()._move()
            self.down = was_down

    flaps = [(40.0 + 30 * i, 60.0 + 30 * i) for i in range(1000)]
    changes = {"recovery.deadlines": {"outageSeconds": 300}}
    scenario = PacedScenario(make_scenario_job(changes), FlappingOutage(down=flaps))

    await scenario.until_quiet()

    assert causes(scenario) == [Cause.ENDPOINT_DOWN]
    assert (scenario.runtime.now - T0).total_seconds() < 600


async def test_stall_between_outages_is_detected() -> None:
    """The stage timer pauses while the service is down; it does not restart."""

    class HangsAfterOutage(FakeServiceOutage):
        seconds_per_step = 1.0

        def _move(self) -> None:
            super()._move()
            if self.attempt is not None and self.attempt.step >= 25:
                self.attempt.hangs = True

    flaps = [(60.0 + 30 * i, 66.0 + 30 * i) for i in range(10_000)]
    scenario = PacedScenario(
        make_scenario_job({"recovery.maxRestarts": 0}), HangsAfterOutage(down=flaps)
    )

    await scenario.until(lambda status: status.restart_state.retry.intent is Cause.STALLED)

    assert (scenario.runtime.now - T0).total_seconds() < 240


async def test_waiting_attempt_can_be_suspended() -> None:
    scenario = make_service_scenario([(40, 1e6)])
    await scenario.until(is_waiting)

    scenario.edit({"suspend": True})
    await scenario.until_quiet()

    assert causes(scenario) == [Cause.SUSPENDED]
    assert scenario.count(StopAttempt) > 0
    assert scenario.status.phase is Phase.SUSPENDED
    assert not is_waiting(scenario.status)
    assert scenario.status.restart_state.watch.outage_seconds == 0


async def test_active_deadline_applies_to_waiting_attempt() -> None:
    scenario = make_service_scenario([(40, 1e6)], {"activeDeadlineSeconds": 120})

    await scenario.until_quiet()

    assert causes(scenario) == [Cause.DEADLINE_EXCEEDED]


async def test_outage_timer_continues_after_driver_loss() -> None:
    changes = {"recovery.deadlines": {"outageSeconds": 300}}
    scenario = make_service_scenario([(40, 1e6)], changes)
    await scenario.until(is_waiting)
    killed_at = T0 + timedelta(seconds=240)
    await scenario.until(lambda _: scenario.runtime.now >= killed_at)

    assert scenario.runtime.attempt is not None
    CRASH(scenario.runtime, scenario.runtime.attempt)
    await scenario.until_quiet()

    assert causes(scenario) == [Cause.PROGRAM_ERROR, Cause.ENDPOINT_DOWN]
    assert (scenario.runtime.now - T0).total_seconds() < 40 + 300 + 90


async def test_cluster_is_kept_after_failed_retrieval_calls() -> None:
    fails = exits(ExitCode.RETRIEVAL_UNAVAILABLE, "9 of 16 samples failed")
    scenario = make_service_scenario([], faults={(n, 5): fails for n in (1, 2, 3)})

    await scenario.until_quiet()

    assert causes(scenario) == [*[Cause.RETRIEVAL_UNAVAILABLE] * 3, Cause.SUCCEEDED]
    assert scenario.count(CreateCluster) == 1
    assert POLICIES[Cause.RETRIEVAL_UNAVAILABLE].is_counted


# --- outages during preflight

PASSED_RESULT = FakeRuntime().preflight_result


def service_down_result(*ids: CheckId) -> PreflightResult:
    [check] = [c for c in SERVICE_DOWN_RESULT.checks if c.state is CheckState.FAILED]
    others = [
        c
        for c in SERVICE_DOWN_RESULT.checks
        if c.state is not CheckState.FAILED and c.id not in ids
    ]
    checks = [*others, *(check.model_copy(update={"id": each}) for each in ids)]
    return SERVICE_DOWN_RESULT.model_copy(update={"checks": checks})


RETRIEVAL, JUDGE = CheckId.RETRIEVAL_REACHABLE, CheckId.REWARD_CODE


@pytest.mark.row("D10")
@pytest.mark.parametrize("services", [[RETRIEVAL], [JUDGE], [RETRIEVAL, JUDGE]])
async def test_preflight_waits_for_service_without_pod(
    services: list[CheckId],
) -> None:
    scenario = make_service_scenario([], preflight_result=service_down_result(*services))
    await scenario.until(is_waiting)
    since = scenario.condition(ConditionType.WAITING_FOR_ENDPOINT)[2]
    while scenario.runtime.now - T0 < timedelta(minutes=10):
        await scenario.round()
        assert scenario.runtime._cluster is None
        scenario.runtime.now += timedelta(seconds=1)

    condition = scenario.condition(ConditionType.WAITING_FOR_ENDPOINT)
    assert "endpoint kb (http://kb:8000/retrieve): ConnectionRefused" in condition[2]
    assert condition[2] == since  # still the time of the first observation
    assert scenario.status.phase is Phase.PREFLIGHT
    assert 10 <= scenario.count(StartPreflight) <= 21
    scenario.runtime.preflight_result = PASSED_RESULT
    await scenario.until_quiet()
    assert causes(scenario) == [Cause.SUCCEEDED]
    assert not is_waiting(scenario.status)


async def test_watch_events_do_not_shorten_retry_interval() -> None:
    scenario = make_service_scenario([], preflight_result=SERVICE_DOWN_RESULT)
    await scenario.until(is_waiting)
    started = scenario.runtime.now
    checks = scenario.count(StartPreflight)
    removed = scenario.count(DeletePreflight)

    for seconds in (5, 29.5):
        scenario.runtime.now = started + timedelta(seconds=seconds - OUTAGE_RETRY_SECONDS)
        await scenario.round()
        assert (scenario.count(StartPreflight), scenario.count(DeletePreflight)) == (
            checks,
            removed,
        )

    assert scenario.runtime.now - started < timedelta(seconds=1)
    await scenario.round()
    assert scenario.count(StartPreflight) == checks + 1


async def test_outage_deadline_fails_job_during_preflight() -> None:
    changes = {"recovery.deadlines": {"outageSeconds": 300}}
    scenario = make_service_scenario([], changes, preflight_result=SERVICE_DOWN_RESULT)

    await scenario.until_quiet()

    assert scenario.condition(ConditionType.FAILED)[1] == "EndpointDown"
    assert 300 <= (scenario.runtime.now - T0).total_seconds() <= 360
    assert scenario.status.attempt == 0
    assert scenario.runtime._preflight is None


async def test_changed_spec_is_checked_at_once_while_preflight_waits() -> None:
    scenario = make_service_scenario([], preflight_result=SERVICE_DOWN_RESULT)
    await scenario.until(is_waiting)
    edited = scenario.runtime.now

    scenario.runtime.preflight_result = PASSED_RESULT
    scenario.edit({"data.maxSamples": 50})
    await scenario.until(lambda status: status.attempt == 1)

    assert (scenario.runtime.now - edited).total_seconds() < 15


@pytest.mark.parametrize("is_checking", [False, True])
async def test_changed_spec_resets_outage_timer(
    is_checking: bool,
) -> None:
    changes = {"recovery.deadlines": {"outageSeconds": 300}}
    scenario = make_service_scenario([], changes, preflight_result=SERVICE_DOWN_RESULT)
    await scenario.until(lambda _: scenario.runtime.now - T0 >= timedelta(seconds=200))
    await scenario.until(lambda _: (scenario.runtime._preflight is not None) is is_checking)

    edited = scenario.runtime.now
    scenario.edit(changes | {"data.maxSamples": 50})
    await scenario.until_quiet()

    assert causes(scenario) == []
    assert scenario.condition(ConditionType.FAILED)[1] == "EndpointDown"
    assert 300 <= (scenario.runtime.now - edited).total_seconds() <= 360


async def test_failed_checks_other_than_outages_fail_job_at_once() -> None:
    checks = [
        *SERVICE_DOWN_RESULT.checks,
        Check(id=CheckId.DATA_COLUMNS, state=CheckState.FAILED, evidence="no column prompt"),
    ]
    result = PreflightResult(facts=KNOWN_TINY, checks=checks, exit_code=ExitCode.PREFLIGHT_FAILED)
    scenario = make_service_scenario([], preflight_result=result)

    await scenario.until_quiet()

    assert scenario.condition(ConditionType.FAILED)[1] == "PreflightFailed"


async def test_waiting_preflight_can_be_suspended() -> None:
    scenario = make_service_scenario([], preflight_result=SERVICE_DOWN_RESULT)
    await scenario.until(is_waiting)

    scenario.edit({"suspend": True})
    await scenario.until_quiet()

    assert scenario.status.phase is Phase.SUSPENDED
    assert not is_waiting(scenario.status)


async def test_waiting_condition_is_not_set_without_outage() -> None:
    scenario = make_service_scenario([(1e6, 1e7)])
    await until_step(scenario, 5)
    assert not is_waiting(scenario.status)
