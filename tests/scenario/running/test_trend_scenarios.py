import pytest

from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import ConditionType
from raggrpo_api.status.restart_state import Baseline
from raggrpo_api.trainer.exit_codes import ExitCode
from support.fakes.fake_runtime import exits, head_is_lost, make_scenario, until_step


@pytest.mark.row("A25")
async def test_slowing_down_condition_is_set_and_cleared() -> None:
    scenario = make_scenario()
    await until_step(scenario, 15)
    scenario.runtime.seconds_per_step = 1.4
    await until_step(scenario, 20)
    slow = scenario.condition(ConditionType.SLOWING_DOWN)
    scenario.runtime.seconds_per_step = 1.1
    await until_step(scenario, 25)

    assert slow[:2] == ("True", "StepTimeIncreased")
    assert "1.40 s per step, 1.00 s at step 1" in slow[2]
    assert scenario.condition(ConditionType.SLOWING_DOWN) == ("False", "StepTimeStable", "")
    await scenario.until_quiet()
    assert len(scenario.attempts) == 1


@pytest.mark.row("B14")
async def test_baseline_is_measured_again_in_new_attempt() -> None:
    scenario = make_scenario({(1, 33): head_is_lost})
    await scenario.until(lambda status: status.attempt == 2)
    assert scenario.status.restart_state.baseline == Baseline()
    scenario.runtime.seconds_per_step = 1.4  # the pods of the new cluster run on a slower node

    await scenario.until_quiet()

    assert scenario.status.restart_state.baseline.seconds == 1.4
    assert scenario.condition(ConditionType.SLOWING_DOWN)[0] != "True"


async def test_slowing_down_message_shows_current_pace() -> None:
    scenario = make_scenario()
    await until_step(scenario, 15)
    scenario.runtime.seconds_per_step = 1.4
    await until_step(scenario, 20)
    first = scenario.condition(ConditionType.SLOWING_DOWN)

    scenario.runtime.seconds_per_step = 1.6
    await until_step(scenario, 25)
    later = scenario.condition(ConditionType.SLOWING_DOWN)

    assert first[2].startswith("1.40 s per step, 1.00 s at step 1")
    assert later[2].startswith("1.60 s per step, 1.00 s at step 1")


async def test_slowing_down_condition_is_cleared_at_end_of_job() -> None:
    scenario = make_scenario()
    await until_step(scenario, 15)
    scenario.runtime.seconds_per_step = 1.4

    await scenario.until_quiet()

    assert scenario.condition(ConditionType.SLOWING_DOWN) == ("False", "AttemptEnded", "")
    assert scenario.condition(ConditionType.COMPLETE)[0] == "True"


async def test_slowing_down_condition_is_cleared_at_end_of_attempt() -> None:
    scenario = make_scenario({(1, 33): head_is_lost})
    await until_step(scenario, 15)
    scenario.runtime.seconds_per_step = 1.4

    await scenario.until(lambda status: status.attempt == 2)

    assert scenario.condition(ConditionType.SLOWING_DOWN)[:2] == ("False", "AttemptEnded")


@pytest.mark.row("A25")
async def test_longer_completions_and_more_trained_groups_do_not_count_as_slowdown() -> None:
    scenario = make_scenario(changes={"recovery.restartWhenDegraded": True})
    runtime = scenario.runtime
    runtime.seconds_by_stage = {"generate": 0.5, "train": 0.4}
    runtime.tokens_by_stage = {"generate": 1000, "train": 200}
    await until_step(scenario, 15)
    runtime.seconds_per_step = 2.3
    runtime.seconds_by_stage = {"generate": 1.0, "train": 1.2}
    runtime.tokens_by_stage = {"generate": 2000, "train": 600}

    await scenario.until_quiet()

    assert scenario.condition(ConditionType.SLOWING_DOWN)[0] != "True"
    assert len(scenario.attempts) == 1


@pytest.mark.row("A25")
async def test_restart_when_degraded_saves_and_restarts() -> None:
    scenario = make_scenario(changes={"recovery.restartWhenDegraded": True})
    await until_step(scenario, 15)
    scenario.runtime.seconds_per_step = 1.4
    await scenario.until(lambda status: status.attempt == 2)
    first = scenario.attempts[0]

    # The second attempt is as slow as the first, but steady relative to its own baseline.
    await scenario.until_quiet()

    assert [record.cause for record in scenario.attempts] == [Cause.DEGRADED, Cause.SUCCEEDED]
    assert scenario.attempts[1].from_step == first.to_step
    assert "SlowingDown: 1.40 s per step" in str(scenario.runtime.statuses)
    assert scenario.status.restarts.since_progress == 0


async def test_degradation_does_not_restart_attempt_by_default() -> None:
    scenario = make_scenario()
    await until_step(scenario, 15)
    scenario.runtime.seconds_per_step = 1.4

    await scenario.until_quiet()

    assert len(scenario.attempts) == 1


@pytest.mark.row("D3")
async def test_policy_mismatch_condition_message_contains_difference() -> None:
    scenario = make_scenario()
    await until_step(scenario, 15)
    assert scenario.condition(ConditionType.POLICY_MISMATCH)[0] != "True"
    scenario.runtime.mismatch_mean = 0.3
    await until_step(scenario, 20)
    off = scenario.condition(ConditionType.POLICY_MISMATCH)
    scenario.runtime.mismatch_mean = 0.001
    await until_step(scenario, 25)

    assert off[:2] == ("True", "LogprobsDiffer")
    assert "differ by 0.3 nats per token at step 1" in off[2]
    assert scenario.condition(ConditionType.POLICY_MISMATCH) == ("False", "LogprobsAgree", "")
    await scenario.until_quiet()
    assert len(scenario.attempts) == 1


@pytest.mark.row("D3")
async def test_policy_mismatch_fails_job_without_retry() -> None:
    fault = exits(ExitCode.POLICY_MISMATCH, "they differ by 1.5 nats per token at step 12")
    scenario = make_scenario({(1, 12): fault})
    await scenario.until_quiet()
    assert [record.cause for record in scenario.attempts] == [Cause.POLICY_MISMATCH]
    assert "1.5 nats" in scenario.condition(ConditionType.FAILED)[2]
