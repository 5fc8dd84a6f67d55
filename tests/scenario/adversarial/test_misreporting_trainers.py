"""A trainer that lies, never ends and never stops exempts its job from nothing."""

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
"""Rounds between the user's edit and the end of the cluster, a few seconds each."""
ENDLESS = {"training.totalSteps": 100_000, "recovery.deadlines": {"checkpointSeconds": 60}}
Lie = Callable[[int], dict[str, Any]]
WAITS = {"stage": "WaitingForEndpoint", "step": 5}
LIES: dict[str, Lie] = {
    "says nothing": lambda n: {"stage": "Dancing"},
    "is always another attempt": lambda n: {"attempt": 99},
    "counts up for ever": lambda n: {"step": min(10**9, 1000 * n)},
    "counts back": lambda n: {"step": max(0, 10**6 - n)},
    "is at the end for ever": lambda n: {"step": 10**9, "stage": "Finished"},
    "takes absurdly long": lambda n: {"secondsPerStep": 3e8, "saveSeconds": 3e8},
    "is far from its target": lambda n: {"totalSteps": 10**9, "secondsPerStep": 3e8},
    "changes its stage each time": lambda n: {"stage": ["Validating", "Exporting"][n % 2]},
    "waits for ever": lambda n: {**WAITS, "waitedSeconds": 3e8},
    "waits for what there is not": lambda n: {
        **WAITS,
        "waitingFor": [{"name": "\x1b[2Jkb", "since": "yesterday\n", "cause": 250 * "\u202e"}] * 16,
    },
    "waits now and then": lambda n: WAITS if n % 2 else {"stage": "Training", "step": 5},
    "measures what is no number": lambda n: {
        "metrics": [
            {"name": name, "value": ["nan", "abc", "1e999", "-1", "1e300"][n % 5]}
            for name in ("host_memory_bytes", "rank_memory_bytes", "reward_mean")
        ]
    },
    "chose what there is not": lambda n: {"pinned": {"precision": "FP1", "attention": "\x1b[1m"}},
    "always saves": lambda n: {"checkpoint": {"step": n, "path": "/" + 900 * "\u6f22" + str(n)}},
    "always replaces": lambda n: {"inPlace": [250 * "\U0001f600" + str(n)] * 16},
}


class Lying(FakeRuntime):
    """A trainer that misreports progress and whose driver ignores signals."""

    lie: Lie = staticmethod(lambda n: {})
    reads = 0

    def _progress(self) -> Progress | None:
        if (progress := super()._progress()) is None:
            return None
        self.reads += 1
        reported = json.loads(progress.model_dump_json(by_alias=True)) | self.lie(self.reads)
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
    world = Lying()
    world.lie = LIES[name]
    scenario = Scenario(make_scenario_job(endless), world)
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


def allowed(scenario: Scenario) -> timedelta:
    grace = grace_seconds(scenario.job.spec, scenario.status)
    return timedelta(seconds=grace + STOP_SECONDS + MARGIN_SECONDS)


async def until_freed(scenario: Scenario, since: Any) -> None:
    most = allowed(scenario)
    while scenario.runtime._cluster is not None:
        await scenario.round()
        assert scenario.runtime.now - since < most, scenario.status.conditions


@pytest.mark.parametrize("name", LIES)
async def test_suspended_job_pods_are_deleted_after_grace_period(name: str) -> None:
    scenario = await make_misreporting_scenario(name)

    scenario.edit({**ENDLESS, "suspend": True})
    await until_freed(scenario, scenario.runtime.now)
    await scenario.until_quiet(timedelta(hours=1))

    assert scenario.status.phase is Phase.SUSPENDED


@pytest.mark.parametrize("name", LIES)
async def test_job_past_deadline_ends_after_grace_period(name: str) -> None:
    scenario = await make_misreporting_scenario(name, {"activeDeadlineSeconds": 120})
    started = scenario.status.attempts[-1].started
    assert started is not None

    await until_freed(scenario, started + timedelta(seconds=120))
    await scenario.until_quiet(timedelta(hours=1))

    assert scenario.condition(ConditionType.FAILED)[1] == Cause.DEADLINE_EXCEEDED


@pytest.mark.row("D10")
@pytest.mark.parametrize(
    "name", ["waits for ever", "waits for what there is not", "waits now and then"]
)
async def test_waiting_trainer_ends_at_outage_deadline(name: str) -> None:
    deadlines = {"outageSeconds": 60, "checkpointSeconds": 60}
    scenario = await make_misreporting_scenario(
        name, {"recovery.deadlines": deadlines, "recovery.maxRestarts": 0}
    )

    await scenario.until_quiet(timedelta(hours=1))

    assert scenario.condition(ConditionType.FAILED)[1] == Cause.ENDPOINT_DOWN
    assert scenario.condition(ConditionType.FAILED)[2].isprintable()
    assert scenario.runtime._cluster is None


@pytest.mark.parametrize("name", LIES)
async def test_next_attempt_starts_after_any_reported_progress(name: str) -> None:
    scenario = await make_misreporting_scenario(name, {"training.precision": "Auto"})
    assert scenario.runtime.attempt is not None

    CRASH(scenario.runtime, scenario.runtime.attempt)
    scenario.runtime.lie = lambda n: {}  # type: ignore[attr-defined]
    await scenario.until(lambda status: status.attempt == 2 and bool(status.attempts[0].started))


async def test_preflight_with_maximum_number_of_checks_is_evaluated() -> None:
    check = Check(id=CheckId.PATHS, state=CheckState.PASSED, evidence="fine")
    result = PreflightResult(facts=KNOWN_TINY, checks=[check] * 32)
    scenario = Scenario(make_scenario_job(), FakeRuntime(preflight_result=result))

    await scenario.until_quiet()

    assert scenario.status.phase is Phase.SUCCEEDED
    assert [each.id for each in scenario.status.preflight.checks] == ["Paths", "RulesOnFacts"]


async def test_large_annotation_does_not_enlarge_status() -> None:
    scenario = Scenario(
        make_scenario_job({"recovery.maxRestarts": 0}), FakeRuntime(faults={(1, 5): CRASH})
    )
    scenario.retry("again " * 20_000)

    await scenario.until_quiet()

    assert scenario.status.phase is Phase.FAILED
    assert json_size(scenario.status) < MAX_BYTES
    scenario.retry("again " * 20_001)
    assert (await scenario.until_quiet()).phase is Phase.SUCCEEDED
