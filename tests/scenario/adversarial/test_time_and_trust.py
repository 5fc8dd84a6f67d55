from datetime import timedelta
from typing import Any

import pytest

from raggrpo_api.status.attempts import Tier
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import ConditionType, Phase
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.progress import Stage
from raggrpo_operator.core.lifecycle.actions import CreateCluster, DeleteCluster, SubmitAttempt
from raggrpo_operator.core.lifecycle.observed import ClusterObserved
from raggrpo_operator.errors import AccessDenied
from support.fakes.fake_runtime import (
    CRASH,
    Attempt,
    FakeRuntime,
    Story,
    a_story,
    causes,
    crashes_and_tears,
    exits,
    hangs,
)

OUTAGE = timedelta(minutes=31)
LOW = {"recovery.deadlines": {"provisioningSeconds": 60, "preflightSeconds": 60}}


def configs(story: Story) -> list[Any]:
    return [a.config for a in story.runtime.performed if isinstance(a, SubmitAttempt)]


# An operator that was away


@pytest.mark.row("B13")
@pytest.mark.parametrize("rounds", [0, 1, 2, 4, 6, 9, 14, 25, 40])
async def test_an_operator_that_was_down_for_half_an_hour_kills_nothing(rounds: int) -> None:
    story = a_story(changes=LOW)
    for _ in range(rounds):
        await story.round()

    story.runtime.now += OUTAGE
    story.runtime.is_blind = True  # and its first look goes wrong as well
    await story.round()
    story.runtime.is_blind = False
    await story.until_quiet()

    assert causes(story) == [Cause.SUCCEEDED]
    assert story.count(CreateCluster) == 1


async def test_a_hang_during_an_outage_is_found_one_limit_after_it() -> None:
    story = a_story({(1, 25): hangs})
    await story.until(lambda status: status.progress.step == 25)

    story.runtime.now += OUTAGE
    back = story.runtime.now
    await story.until(lambda status: status.attempts[0].cause is Cause.STALLED)

    assert timedelta(seconds=60) < story.runtime.now - back < timedelta(seconds=75)


@pytest.mark.parametrize("hours", [-30, -1])
async def test_a_clock_that_was_set_back_neither_delays_nor_kills(hours: int) -> None:
    changes = {"recovery.backoffSeconds": 100}
    story = a_story({(n, 5): CRASH for n in (1, 2)}, changes)
    await story.until(lambda status: bool(status.restart_state.retry.next_retry_time))

    story.runtime.now += timedelta(hours=hours)
    set_back = story.runtime.now
    await story.until_quiet()

    assert story.status.phase is Phase.SUCCEEDED
    assert story.runtime.now - set_back < timedelta(minutes=5)


async def test_progress_that_stays_unreadable_ends_the_attempt_after_its_long_deadline() -> None:
    story = a_story(changes={"recovery.deadlines": {"progressUnreachableSeconds": 300}})
    await story.until(lambda status: status.progress.step == 5)
    story.runtime.is_blind, since = True, story.runtime.now
    story.runtime.attempt.hangs = True  # type: ignore[union-attr]

    await story.until(lambda status: status.restart_state.retry.intent is not None)

    assert story.status.restart_state.retry.intent is Cause.PROGRESS_UNREACHABLE
    assert timedelta(seconds=300) < story.runtime.now - since < timedelta(seconds=310)


async def test_refused_access_for_hours_kills_nothing() -> None:
    class Refusing(FakeRuntime):
        refuses = False

        async def observe(self, job: Any) -> Any:
            if self.refuses:
                raise AccessDenied("HTTP 401")
            return await super().observe(job)

    story = a_story()
    story.runtime = runtime = Refusing()
    await story.until(lambda status: status.progress.step == 5)
    runtime.refuses = True
    for _ in range(7200):
        await story.round()
    runtime.refuses = False

    await story.until_quiet()

    assert causes(story) == [Cause.SUCCEEDED]


# Stopping what does not stop


async def test_a_driver_that_outlives_its_stop_goes_with_its_cluster() -> None:
    def never_dies(_: FakeRuntime, attempt: Attempt) -> None:
        attempt.hangs = attempt.ignores_stop = True

    story = a_story({(1, 25): never_dies})

    await story.until_quiet()

    assert causes(story) == [Cause.STALLED, Cause.SUCCEEDED]
    assert story.attempts[1].tier is Tier.NEW_CLUSTER
    assert story.count(CreateCluster) == story.count(DeleteCluster) == 2


async def test_ranks_that_do_not_die_lead_to_a_new_cluster() -> None:
    story = a_story({(1, 25): exits(ExitCode.RANKS_STUCK, "2 ranks of epoch 1 are alive")})

    await story.until_quiet()

    assert causes(story) == [Cause.RANKS_STUCK, Cause.SUCCEEDED]
    assert story.attempts[1].tier is Tier.NEW_CLUSTER


@pytest.mark.parametrize("stage", [Stage.CHECKPOINTING, Stage.EXPORTING, Stage.FINISHED])
async def test_a_save_or_an_end_that_is_stuck_meets_its_deadline(stage: Stage) -> None:
    story = a_story(changes={"recovery.deadlines": {"checkpointSeconds": 120}})
    await story.until(lambda status: status.progress.step == 15)

    story.runtime.attempt.hangs = True  # type: ignore[union-attr]
    story.runtime.stage, since = stage, story.runtime.now
    await story.until(lambda status: status.restart_state.retry.intent is Cause.STALLED)

    assert timedelta(seconds=120) < story.runtime.now - since < timedelta(seconds=125)
    assert f"stage {stage} at step 15" in story.condition(ConditionType.STALLED)[2]


# The budget


@pytest.mark.row("B11")
async def test_a_checkpoint_that_is_torn_and_written_anew_each_time_renews_no_budget() -> None:
    story = a_story({(n, 12): crashes_and_tears for n in range(1, 20)}, {"recovery.maxRestarts": 3})

    await story.until_quiet()

    assert story.condition(ConditionType.FAILED)[1] == "RestartBudgetExhausted"
    assert len(story.attempts) == 1 + 3


@pytest.mark.row("B6")
async def test_ends_that_do_not_count_are_delayed_all_the_same() -> None:
    preempted = exits(ExitCode.PREEMPTED)
    faults = {(n, 5): preempted for n in range(1, 6)}
    story = a_story(faults, {"recovery.maxRestarts": 0})

    await story.until_quiet()

    assert story.status.phase is Phase.SUCCEEDED
    assert story.status.restarts.since_progress == 0
    assert [round(delay, -1) for delay in story.delays if delay > 6] == [10, 20, 40, 80]


async def test_a_target_raised_while_it_runs_is_no_failure() -> None:
    recovery = {"recovery.maxRestarts": 0, "recovery.backoffSeconds": 30}
    story = a_story(changes=recovery)
    await story.until(lambda status: status.progress.step == 30)

    story.edit(recovery | {"training.totalSteps": 70})
    await story.until_quiet()

    assert story.status.phase is Phase.SUCCEEDED
    assert causes(story) == [Cause.SUCCEEDED, Cause.SUCCEEDED]
    assert (story.status.progress.step, story.status.restarts.since_progress) == (70, 0)
    first, second = (each.started for each in story.attempts)
    assert first is not None
    assert second is not None
    pause = (second - first).total_seconds() - story.attempts[0].seconds
    assert 25 < pause < 45  # an image that chose its target itself would not spin either
    assert story.status.restart_state.spent.down_seconds == 0


# The spec


async def test_an_edit_that_makes_the_spec_invalid_does_not_end_what_runs() -> None:
    story = a_story()
    await story.until(lambda status: status.progress.step == 25)

    story.edit({"checkpoint.everySteps": 0})
    await story.until(lambda status: status.progress.step == 30)

    assert story.condition(ConditionType.ACCEPTED)[0] == "False"
    assert story.count(DeleteCluster) == 0
    story.edit({})
    await story.until_quiet()
    assert causes(story) == [Cause.SUCCEEDED]


async def test_an_invalid_spec_begins_nothing_after_an_attempt_has_ended() -> None:
    story = a_story({(1, 25): CRASH})
    await story.until(lambda status: status.progress.step == 20)

    story.edit({"checkpoint.everySteps": 0})
    await story.until_quiet()

    assert (story.status.phase, causes(story)) == (Phase.INVALID, [Cause.PROGRAM_ERROR])
    assert story.count(DeleteCluster) == 1
    story.edit({})
    await story.until_quiet()
    assert story.status.phase is Phase.SUCCEEDED


async def test_a_deleted_job_gets_nothing_any_more() -> None:
    story = a_story()
    await story.until(lambda status: status.attempt == 1)
    stamp = {"deletion_timestamp": "2026-11-21T12:00:00Z"}
    metadata = story.job.metadata.model_copy(update=stamp)
    story.job = story.job.model_copy(update={"metadata": metadata})
    performed, written = len(story.runtime.performed), len(story.runtime.statuses)

    await story.until_quiet()

    assert len(story.runtime.performed) == performed
    assert len(story.runtime.statuses) == written


# Clusters


async def test_an_old_cluster_that_shows_up_late_goes_first_and_costs_nothing() -> None:
    class Lagging(FakeRuntime):
        old = 0

        async def observe(self, job: Any) -> Any:
            seen = await super().observe(job)
            if self.old:
                return type(seen)(cluster=ClusterObserved(self.old), head_answers=False)
            return seen

    story = a_story({(1, 5): exits(ExitCode.RANKS_STUCK)})
    story.runtime = runtime = Lagging(faults=story.runtime.faults)
    await story.until(lambda status: status.cluster.number == 2)

    runtime.old = 1
    for _ in range(3):
        await story.round()
    runtime.old = 0
    await story.until_quiet()

    assert causes(story) == [Cause.RANKS_STUCK, Cause.SUCCEEDED]


@pytest.mark.parametrize("action", [CreateCluster, SubmitAttempt])
async def test_whatever_must_exist_once_is_written_down_before_each_try(
    action: type[CreateCluster | SubmitAttempt],
) -> None:
    class Failing(FakeRuntime):
        tries = 0

        async def perform(self, job: Any, todo: Any) -> None:
            if isinstance(todo, action) and self.tries < 3:
                self.tries += 1
                tries = [status.restart_state.launch.tries for status in self.statuses]
                assert job.status.restart_state.launch.tries == tries[-1]
                assert len(set(tries)) > self.tries
                raise AccessDenied("HTTP 403")
            await super().perform(job, todo)

    story = a_story()
    story.runtime = Failing()

    assert (await story.until_quiet()).phase is Phase.SUCCEEDED


# The same failure again


NAN = exits(ExitCode.NON_FINITE, "loss nan")


async def test_the_first_loss_that_is_not_finite_changes_nothing() -> None:
    story = a_story({(1, 26): NAN})

    await story.until_quiet()

    assert causes(story) == [Cause.NON_FINITE, Cause.SUCCEEDED]
    assert [c.skipped_steps for c in configs(story)] == [[], []]


async def test_the_second_at_the_same_step_leaves_out_its_prompts_and_the_checkpoint() -> None:
    story = a_story({(1, 26): NAN, (2, 26): NAN})

    await story.until_quiet()

    assert causes(story) == [Cause.NON_FINITE, Cause.NON_FINITE, Cause.SUCCEEDED]
    assert [c.skipped_steps for c in configs(story)] == [[], [], [27]]
    assert configs(story)[2].rejected_checkpoints == ["/20"]
    assert story.attempts[2].from_step == 10
    assert len({config.attempt.resume_hash for config in configs(story)}) == 1
    assert configs(story)[2].attempt.config_hash != configs(story)[1].attempt.config_hash


async def test_the_third_at_the_same_step_ends_the_job() -> None:
    story = a_story({(n, 26): NAN for n in (1, 2, 3)})

    await story.until_quiet()

    status, reason, message = story.condition(ConditionType.FAILED)
    assert (status, reason) == ("True", "NonFinite")
    assert message == "loss nan (deterministic: 3 attempts ended so after step 26)"


async def test_losses_that_are_not_finite_at_different_steps_are_no_repetition() -> None:
    story = a_story({(1, 26): NAN, (2, 37): NAN, (3, 48): NAN})

    await story.until_quiet()

    assert story.status.phase is Phase.SUCCEEDED
    assert configs(story)[-1].skipped_steps == []


async def test_a_rejected_checkpoint_is_never_chosen_again() -> None:
    faults = {(1, 26): NAN, (2, 26): NAN, (3, 13): CRASH, (4, 33): CRASH}
    story = a_story(faults)

    await story.until_quiet()

    assert all(c.rejected_checkpoints == ["/20"] for c in configs(story)[2:])
    assert [record.from_step for record in story.attempts] == [0, 20, 10, 10, 10 + 20]


# Out of memory


async def test_a_warm_restart_with_a_mitigation_resumes_and_is_recorded() -> None:
    story = a_story({(1, 27): exits(ExitCode.CUDA_OUT_OF_MEMORY, "out of memory")})

    await story.until_quiet()

    first, second = configs(story)
    assert second.training.tokens_per_micro_batch * 2 == first.training.tokens_per_micro_batch
    assert first.attempt.resume_hash == second.attempt.resume_hash
    assert first.attempt.config_hash != second.attempt.config_hash
    record = story.attempts[1]
    assert (record.tier, record.from_step) == (Tier.WARM_CLUSTER, 20)
    assert record.mitigation == "MicroBatchHalved"


async def test_what_was_short_is_changed_and_not_another_pods_threads() -> None:
    cases = {
        ("Engine", ExitCode.CUDA_OUT_OF_MEMORY): "SequencesHalved",
        ("Step", ExitCode.CUDA_OUT_OF_MEMORY): "MicroBatchHalved",
        ("HeadHost", ExitCode.HOST_OUT_OF_MEMORY): "WorkersHalved",
        ("AWordOfAnotherRelease", ExitCode.HOST_OUT_OF_MEMORY): "",
    }
    for (short_of, code), mitigation in cases.items():
        story = a_story({(1, 27): exits(code, "out of memory", short_of)})

        await story.until_quiet()

        assert story.attempts[1].mitigation == mitigation


@pytest.mark.row("D12")
async def test_a_job_short_of_memory_with_nothing_to_lower_ends_after_three_attempts() -> None:
    starved = exits(ExitCode.HOST_OUT_OF_MEMORY, "the driver: std::bad_alloc", "RolloutHost")
    story = a_story({(number, 7): starved for number in range(1, 12)}, {"rollout.maxNumSeqs": 8})

    await story.until_quiet()

    assert len(story.attempts) == 3
    value, reason, message = story.condition(ConditionType.FAILED)
    assert (value, reason) == ("True", "HostOutOfMemory")
    assert "nothing is left to lower" in message


async def test_out_of_memory_ends_the_job_when_that_was_asked_for() -> None:
    story = a_story(
        {(1, 27): exits(ExitCode.CUDA_OUT_OF_MEMORY, "out of memory")},
        {"recovery.onOutOfMemory": "Fail"},
    )

    await story.until_quiet()

    assert story.condition(ConditionType.FAILED) == ("True", "CudaOutOfMemory", "out of memory")


@pytest.mark.parametrize(
    "change",
    [
        {"training.totalSteps": 90},
        {"training.tokensPerMicroBatch": 4096},
        {"training.gradientCheckpointing": True},
        {"monitoring.logDir": "/mnt/runs/other-logs"},
        {"recovery.maxRestarts": 99},
        {"checkpoint.everySteps": 7},
    ],
)
async def test_what_changes_no_result_makes_no_checkpoint_incompatible(change: Any) -> None:
    story = a_story({(1, 27): CRASH})
    await story.until(lambda status: status.progress.step == 25)
    story.edit(change)

    await story.until_quiet()

    first, second = configs(story)
    assert first.attempt.resume_hash == second.attempt.resume_hash
    assert first.attempt.config_hash != second.attempt.config_hash or "recovery" in str(change)
    assert story.attempts[1].from_step == 20
