import pytest

from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import ConditionType
from raggrpo_api.status.restart_state import Baseline
from raggrpo_api.trainer.exit_codes import ExitCode
from support.fakes.fake_runtime import a_story, exits, head_is_lost, until_step


@pytest.mark.row("A25")
async def test_a_run_that_slows_down_says_so_and_takes_it_back_and_goes_on() -> None:
    story = a_story()
    await until_step(story, 15)
    story.runtime.seconds_per_step = 1.4
    await until_step(story, 20)
    slow = story.condition(ConditionType.SLOWING_DOWN)
    story.runtime.seconds_per_step = 1.1
    await until_step(story, 25)

    assert slow[:2] == ("True", "Growing")
    assert "1.40 s per step, 1.00 s at step 1" in slow[2]
    assert story.condition(ConditionType.SLOWING_DOWN) == ("False", "Steady", "")
    await story.until_quiet()
    assert len(story.attempts) == 1


@pytest.mark.row("B14")
async def test_a_new_attempt_is_compared_with_its_own_beginning() -> None:
    story = a_story({(1, 33): head_is_lost})
    await story.until(lambda status: status.attempt == 2)
    assert story.status.restart_state.baseline == Baseline()
    story.runtime.seconds_per_step = 1.4  # its pods lie on another, slower node

    await story.until_quiet()

    assert story.status.restart_state.baseline.seconds == 1.4
    assert story.condition(ConditionType.SLOWING_DOWN)[0] != "True"


async def test_a_message_about_slowness_does_not_change_with_every_step() -> None:
    story = a_story()
    await until_step(story, 15)
    story.runtime.seconds_per_step = 1.4
    await until_step(story, 20)
    first = story.condition(ConditionType.SLOWING_DOWN)

    story.runtime.seconds_per_step = 1.6
    await until_step(story, 25)

    assert story.condition(ConditionType.SLOWING_DOWN) == first


@pytest.mark.row("A25")
async def test_a_job_that_asks_for_it_saves_and_restarts_once_it_is_slow() -> None:
    story = a_story(changes={"recovery.restartWhenDegraded": True})
    await until_step(story, 15)
    story.runtime.seconds_per_step = 1.4
    await story.until(lambda status: status.attempt == 2)
    first = story.attempts[0]

    await story.until_quiet()  # as slow as before: compared with itself the second one is steady

    assert [record.cause for record in story.attempts] == [Cause.DEGRADED, Cause.SUCCEEDED]
    assert story.attempts[1].from_step == first.to_step
    assert "SlowingDown: 1.40 s per step" in str(story.runtime.statuses)
    assert story.status.restarts.since_progress == 0


async def test_nobody_is_restarted_for_a_trend_unless_the_job_says_so() -> None:
    story = a_story()
    await until_step(story, 15)
    story.runtime.seconds_per_step = 1.4

    await story.until_quiet()

    assert len(story.attempts) == 1


@pytest.mark.row("D3")
async def test_a_trainer_unlike_its_engine_is_a_condition_that_names_the_gap() -> None:
    story = a_story()
    await until_step(story, 15)
    assert story.condition(ConditionType.POLICY_MISMATCH)[0] != "True"
    story.runtime.mismatch_mean = 0.3
    await until_step(story, 20)
    off = story.condition(ConditionType.POLICY_MISMATCH)
    story.runtime.mismatch_mean = 0.001
    await until_step(story, 25)

    assert off[:2] == ("True", "LogprobsDiffer")
    assert "differ by 0.3 nats per token at step 1" in off[2]
    assert story.condition(ConditionType.POLICY_MISMATCH) == ("False", "LogprobsAgree", "")
    await story.until_quiet()
    assert len(story.attempts) == 1


@pytest.mark.row("D3")
async def test_an_attempt_that_is_nats_off_is_not_tried_again() -> None:
    fault = exits(ExitCode.POLICY_MISMATCH, "they differ by 1.5 nats per token at step 12")
    story = a_story({(1, 12): fault})
    await story.until_quiet()
    assert [record.cause for record in story.attempts] == [Cause.POLICY_MISMATCH]
    assert "1.5 nats" in story.condition(ConditionType.FAILED)[2]
