"""Jobs whose steps show that they learn nothing."""

import pytest

from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import ConditionType, Phase
from raggrpo_api.trainer.learning import Streak
from raggrpo_operator.kubernetes_runtime.rounds.events import Transition
from support.builders.operator.rounds import events
from support.fakes.fake_runtime import Scenario, head_is_lost, make_scenario, until_step

NOT_LEARNING = ConditionType.NOT_LEARNING
WINDOW = 20
ZERO = Streak(reason="NoRewardSignal", since=1, share=1.0, example="sample 0/0 has reward 0")
EQUAL = Streak(reason="ZeroVariance", since=1, share=1.0)


def learning_events(scenario: Scenario) -> list[Transition]:
    return [each for each in events(scenario) if "learning" in each.note]


@pytest.mark.row("B33")
async def test_not_learning_condition_is_set_after_window_and_cleared() -> None:
    scenario = make_scenario()
    scenario.runtime.streaks = [ZERO, EQUAL]
    await until_step(scenario, WINDOW - 1)
    before = scenario.condition(NOT_LEARNING)
    await until_step(scenario, WINDOW + 1)
    during = scenario.condition(NOT_LEARNING)
    reason = scenario.condition(ConditionType.READY)[:2]
    scenario.runtime.streaks = []
    await until_step(scenario, WINDOW + 5)

    assert before[0] == "Unknown"
    assert during[:2] == ("True", "NoRewardSignal")
    assert during[2].startswith("100 % of completions have reward 0 since step 1: ")
    assert during[2].endswith("; example: sample 0/0 has reward 0")
    assert reason == ("True", "NoRewardSignal")
    assert scenario.condition(NOT_LEARNING) == ("False", "Learning", "")
    assert [(each.reason, each.is_warning) for each in learning_events(scenario)] == [
        ("NoRewardSignal", True), ("Learning", False),
    ]  # fmt: skip


async def test_job_that_ends_without_learning_is_complete_with_reason() -> None:
    scenario = make_scenario()
    scenario.runtime.streaks = [EQUAL]

    await scenario.until_quiet()

    assert scenario.status.phase is Phase.SUCCEEDED
    assert scenario.condition(NOT_LEARNING)[:2] == ("True", "ZeroVariance")
    assert scenario.condition(ConditionType.READY)[:2] == ("True", "ZeroVariance")
    assert scenario.condition(ConditionType.COMPLETE)[2].endswith("NotLearning (ZeroVariance)")


async def test_short_job_without_learning_is_reported_at_its_end() -> None:
    scenario = make_scenario(changes={"training.totalSteps": 3})
    scenario.runtime.streaks = [EQUAL]

    await scenario.until_quiet()

    assert scenario.condition(NOT_LEARNING)[:2] == ("True", "ZeroVariance")


async def test_not_learning_condition_survives_restart() -> None:
    scenario = make_scenario({(1, 33): head_is_lost})
    scenario.runtime.streaks = [ZERO]
    await until_step(scenario, 25)
    first = scenario.condition(NOT_LEARNING)

    await scenario.until(lambda status: status.attempt == 2)
    await until_step(scenario, 35)

    assert scenario.condition(NOT_LEARNING) == first
    assert len(learning_events(scenario)) == 1


@pytest.mark.row("B33")
async def test_job_without_learning_fails_if_specified() -> None:
    scenario = make_scenario(changes={"recovery.onNotLearning": "Fail"})
    scenario.runtime.streaks = [ZERO]

    await scenario.until_quiet()

    assert scenario.status.phase is Phase.FAILED
    [record] = scenario.attempts
    assert record.cause is Cause.NOT_LEARNING
    assert WINDOW <= record.to_step < 60
    assert scenario.status.checkpoint is not None
    assert scenario.status.checkpoint.step == record.to_step
    status, reason, message = scenario.condition(ConditionType.FAILED)
    assert (status, reason) == ("True", "NotLearning")
    assert message.startswith("NoRewardSignal: 100 % of completions have reward 0 since step 1")


async def test_short_job_without_learning_fails_at_its_target_if_specified() -> None:
    changes = {"recovery.onNotLearning": "Fail", "training.totalSteps": 3}
    scenario = make_scenario(changes=changes)
    scenario.runtime.streaks = [ZERO]

    await scenario.until_quiet()

    assert scenario.status.phase is Phase.FAILED
    assert [record.cause for record in scenario.attempts] == [Cause.NOT_LEARNING]


async def test_retried_job_gets_a_window_of_steps_to_learn() -> None:
    scenario = make_scenario(changes={"recovery.onNotLearning": "Fail"})
    scenario.runtime.streaks = [ZERO]
    await scenario.until_quiet()
    failed_at = scenario.attempts[0].to_step

    scenario.retry("2")
    await scenario.until(lambda status: status.progress.step >= failed_at + 5)
    scenario.runtime.streaks = []
    await scenario.until_quiet()

    assert scenario.status.phase is Phase.SUCCEEDED
    assert scenario.condition(NOT_LEARNING)[:2] == ("False", "Learning")


@pytest.mark.parametrize("streaks", [[], [Streak(reason="FromLaterRelease", since=1, share=1.0)]])
async def test_learning_job_has_no_condition(streaks: list[Streak]) -> None:
    scenario = make_scenario()
    scenario.runtime.streaks = streaks

    await scenario.until_quiet()

    assert scenario.condition(NOT_LEARNING)[0] == "Unknown"
