"""Suspension and deadlines apply even if the trainer misreports progress and ignores stops."""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import ConditionType, Phase
from raggrpo_api.status.job_status import status_to_json
from raggrpo_api.trainer.preflight import Check, CheckId, CheckState, PreflightResult
from raggrpo_api.trainer.progress import Progress
from raggrpo_operator.core.lifecycle.during_attempt.follow import STOP_SECONDS
from raggrpo_operator.core.sizing.grace import grace_seconds
from raggrpo_operator.core.state.size_limit import MAX_BYTES, json_size
from raggrpo_operator.core.text.status_text import render_status
from raggrpo_operator.reporting.progress_display import progress_line
from support.builders.operator.jobs import KNOWN_TINY
from support.fakes.fake_runtime import CRASH, T0, FakeRuntime, Scenario, make_scenario_job

MARGIN_SECONDS = 15
"""Time for the rounds between the user's edit and the deletion of the cluster."""
ENDLESS = {"training.totalSteps": 100_000, "recovery.deadlines": {"checkpointSeconds": 60}}
Misreport = Callable[[int], dict[str, Any]]
WAITS = {"stage": "WaitingForEndpoint", "step": 5}
MISREPORTS: dict[str, Misreport] = {
    "unknown stage": lambda n: {"stage": "Dancing"},
    "wrong attempt": lambda n: {"attempt": 99},
    "step always grows": lambda n: {"step": min(10**9, 1000 * n)},
    "step decreases": lambda n: {"step": max(0, 10**6 - n)},
    "finished but running": lambda n: {"step": 10**9, "stage": "Finished"},
    "huge step duration": lambda n: {"secondsPerStep": 3e8, "saveSeconds": 3e8},
    "huge target": lambda n: {"totalSteps": 10**9, "secondsPerStep": 3e8},
    "alternating stages": lambda n: {"stage": ["Validating", "Exporting"][n % 2]},
    "endless outage": lambda n: {**WAITS, "waitedSeconds": 3e8},
    "outage of unknown service": lambda n: {
        **WAITS,
        "waitingFor": [{"name": "\x1b[2Jkb", "since": "yesterday\n", "cause": 250 * "\u202e"}] * 16,
    },
    "flapping outage": lambda n: WAITS if n % 2 else {"stage": "Training", "step": 5},
    "metrics are not numbers": lambda n: {
        "metrics": [
            {"name": name, "value": ["nan", "abc", "1e999", "-1", "1e300"][n % 5]}
            for name in ("host_memory_bytes", "rank_memory_bytes", "reward_mean")
        ]
    },
    "invalid pinned values": lambda n: {"pinned": {"precision": "FP1", "attention": "\x1b[1m"}},
    "endless checkpoints": lambda n: {
        "checkpoint": {"step": n, "path": "/" + 900 * "\u6f22" + str(n)}
    },
    "endless replacements": lambda n: {"inPlace": [250 * "\U0001f600" + str(n)] * 16},
}


class MisreportingRuntime(FakeRuntime):
    """A trainer that misreports progress and whose driver ignores signals."""

    misreport: Misreport = staticmethod(lambda n: {})
    read_count = 0

    def _progress(self) -> Progress | None:
        if (progress := super()._progress()) is None:
            return None
        self.read_count += 1
        reported = json.loads(progress.model_dump_json(by_alias=True)) | self.misreport(
            self.read_count
        )
        try:
            return Progress.model_validate_json(json.dumps(reported))
        except ValueError:
            return None

    def _move(self) -> None:
        super()._move()
        if self.attempt is not None:
            self.attempt.ignores_stop = True


async def make_misreporting_scenario(name: str, changes: dict[str, Any] | None = None) -> Scenario:
    endless = {**ENDLESS, **(changes or {})}
    runtime = MisreportingRuntime()
    runtime.misreport = MISREPORTS[name]
    scenario = Scenario(make_scenario_job(endless), runtime)
    await scenario.until(lambda status: bool(status.attempts and status.attempts[0].started))
    for _ in range(45):
        await scenario.round()
        assert json_size(scenario.status) <= MAX_BYTES
        assert max(numbers(status_to_json(scenario.status))) < 2**63
        render_status(scenario.status)
        progress_line(scenario.status, T0)
    return scenario


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, int | float):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from numbers(each)


def max_shutdown_time(scenario: Scenario) -> timedelta:
    grace = grace_seconds(scenario.job.spec, scenario.status)
    return timedelta(seconds=grace + STOP_SECONDS + MARGIN_SECONDS)


async def until_cluster_is_deleted(scenario: Scenario, since: Any) -> None:
    limit = max_shutdown_time(scenario)
    while scenario.runtime._cluster is not None:
        await scenario.round()
        assert scenario.runtime.now - since < limit, scenario.status.conditions


@pytest.mark.parametrize("name", MISREPORTS)
async def test_suspended_job_has_no_pods_after_grace_period(name: str) -> None:
    scenario = await make_misreporting_scenario(name)

    scenario.edit({**ENDLESS, "suspend": True})
    await until_cluster_is_deleted(scenario, scenario.runtime.now)
    await scenario.until_quiet(timedelta(hours=1))

    assert scenario.status.phase is Phase.SUSPENDED


@pytest.mark.parametrize("name", MISREPORTS)
async def test_job_is_stopped_within_grace_period_after_active_deadline(name: str) -> None:
    scenario = await make_misreporting_scenario(name, {"activeDeadlineSeconds": 120})
    started = scenario.status.attempts[-1].started
    assert started is not None

    await until_cluster_is_deleted(scenario, started + timedelta(seconds=120))
    await scenario.until_quiet(timedelta(hours=1))

    assert scenario.condition(ConditionType.FAILED)[1] == Cause.DEADLINE_EXCEEDED


@pytest.mark.row("D10")
@pytest.mark.parametrize("name", ["endless outage", "outage of unknown service", "flapping outage"])
async def test_waiting_trainer_is_stopped_at_outage_deadline(name: str) -> None:
    deadlines = {"outageSeconds": 60, "checkpointSeconds": 60}
    scenario = await make_misreporting_scenario(
        name, {"recovery.deadlines": deadlines, "recovery.maxRestarts": 0}
    )

    await scenario.until_quiet(timedelta(hours=1))

    assert scenario.condition(ConditionType.FAILED)[1] == Cause.ENDPOINT_DOWN
    assert scenario.condition(ConditionType.FAILED)[2].isprintable()
    assert scenario.runtime._cluster is None


@pytest.mark.parametrize("name", MISREPORTS)
async def test_next_attempt_starts_after_misreported_progress(name: str) -> None:
    scenario = await make_misreporting_scenario(name, {"training.precision": "Auto"})
    assert scenario.runtime.attempt is not None

    CRASH(scenario.runtime, scenario.runtime.attempt)
    scenario.runtime.misreport = lambda n: {}  # type: ignore[attr-defined]
    await scenario.until(lambda status: status.attempt == 2 and bool(status.attempts[0].started))


async def test_duplicate_preflight_checks_appear_once_in_status() -> None:
    check = Check(id=CheckId.PATHS, state=CheckState.PASSED, evidence="fine")
    result = PreflightResult(facts=KNOWN_TINY, checks=[check] * 32)
    scenario = Scenario(make_scenario_job(), FakeRuntime(preflight_result=result))

    await scenario.until_quiet()

    assert scenario.status.phase is Phase.SUCCEEDED
    assert [each.id for each in scenario.status.preflight.checks] == ["Paths", "RulesOnFacts"]


async def test_large_retry_annotation_does_not_enlarge_status() -> None:
    scenario = Scenario(
        make_scenario_job({"recovery.maxRestarts": 0}), FakeRuntime(faults={(1, 5): CRASH})
    )
    scenario.retry("again " * 20_000)

    await scenario.until_quiet()

    assert scenario.status.phase is Phase.FAILED
    assert json_size(scenario.status) < MAX_BYTES
    scenario.retry("again " * 20_001)
    assert (await scenario.until_quiet()).phase is Phase.SUCCEEDED
