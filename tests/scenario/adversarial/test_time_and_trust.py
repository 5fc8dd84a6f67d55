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
    Scenario,
    causes,
    crashes_and_tears,
    exits,
    hangs,
    make_scenario,
)

DOWNTIME = timedelta(minutes=31)
SHORT_DEADLINES = {"recovery.deadlines": {"provisioningSeconds": 60, "preflightSeconds": 60}}


def configs(scenario: Scenario) -> list[Any]:
    return [a.config for a in scenario.runtime.performed if isinstance(a, SubmitAttempt)]


# Operator downtime


@pytest.mark.row("B13")
@pytest.mark.parametrize("rounds", [0, 1, 2, 4, 6, 9, 14, 25, 40])
async def test_operator_downtime_does_not_stop_attempt(rounds: int) -> None:
    scenario = make_scenario(changes=SHORT_DEADLINES)
    for _ in range(rounds):
        await scenario.round()

    scenario.runtime.now += DOWNTIME
    scenario.runtime.is_blind = True  # the first round after the restart cannot read progress
    await scenario.round()
    scenario.runtime.is_blind = False
    await scenario.until_quiet()

    assert causes(scenario) == [Cause.SUCCEEDED]
    assert scenario.count(CreateCluster) == 1


async def test_stall_during_downtime_is_detected_one_deadline_later() -> None:
    scenario = make_scenario({(1, 25): hangs})
    await scenario.until(lambda status: status.progress.step == 25)

    scenario.runtime.now += DOWNTIME
    restarted = scenario.runtime.now
    await scenario.until(lambda status: status.attempts[0].cause is Cause.STALLED)

    assert timedelta(seconds=60) < scenario.runtime.now - restarted < timedelta(seconds=75)


@pytest.mark.parametrize("hours", [-30, -1])
async def test_backward_clock_jump_does_not_change_deadlines(hours: int) -> None:
    changes = {"recovery.backoffSeconds": 100}
    scenario = make_scenario({(n, 5): CRASH for n in (1, 2)}, changes)
    await scenario.until(lambda status: bool(status.restart_state.retry.next_retry_time))

    scenario.runtime.now += timedelta(hours=hours)
    set_back = scenario.runtime.now
    await scenario.until_quiet()

    assert scenario.status.phase is Phase.SUCCEEDED
    assert scenario.runtime.now - set_back < timedelta(minutes=5)


async def test_attempt_with_unreadable_progress_is_stopped_at_progress_unreachable_deadline() -> (
    None
):
    scenario = make_scenario(changes={"recovery.deadlines": {"progressUnreachableSeconds": 300}})
    await scenario.until(lambda status: status.progress.step == 5)
    scenario.runtime.is_blind, since = True, scenario.runtime.now
    scenario.runtime.attempt.hangs = True  # type: ignore[union-attr]

    await scenario.until(lambda status: status.restart_state.retry.intent is not None)

    assert scenario.status.restart_state.retry.intent is Cause.PROGRESS_UNREACHABLE
    assert timedelta(seconds=300) < scenario.runtime.now - since < timedelta(seconds=310)


async def test_denied_access_does_not_stop_attempt() -> None:
    class AccessDeniedRuntime(FakeRuntime):
        denies_access = False

        async def observe(self, job: Any) -> Any:
            if self.denies_access:
                raise AccessDenied("HTTP 401")
            return await super().observe(job)

    scenario = make_scenario()
    scenario.runtime = runtime = AccessDeniedRuntime()
    await scenario.until(lambda status: status.progress.step == 5)
    runtime.denies_access = True
    for _ in range(7200):
        await scenario.round()
    runtime.denies_access = False

    await scenario.until_quiet()

    assert causes(scenario) == [Cause.SUCCEEDED]


# Attempts that do not stop


async def test_driver_that_ignores_stop_is_deleted_with_cluster() -> None:
    def hangs_and_ignores_stop(_: FakeRuntime, attempt: Attempt) -> None:
        attempt.hangs = attempt.ignores_stop = True

    scenario = make_scenario({(1, 25): hangs_and_ignores_stop})

    await scenario.until_quiet()

    assert causes(scenario) == [Cause.STALLED, Cause.SUCCEEDED]
    assert scenario.attempts[1].tier is Tier.NEW_CLUSTER
    assert scenario.count(CreateCluster) == scenario.count(DeleteCluster) == 2


async def test_cluster_is_replaced_when_ranks_are_stuck() -> None:
    scenario = make_scenario({(1, 25): exits(ExitCode.RANKS_STUCK, "2 ranks of epoch 1 are alive")})

    await scenario.until_quiet()

    assert causes(scenario) == [Cause.RANKS_STUCK, Cause.SUCCEEDED]
    assert scenario.attempts[1].tier is Tier.NEW_CLUSTER


@pytest.mark.parametrize("stage", [Stage.CHECKPOINTING, Stage.EXPORTING, Stage.FINISHED])
async def test_stuck_save_or_export_is_reported_as_stalled_at_checkpoint_deadline(
    stage: Stage,
) -> None:
    scenario = make_scenario(changes={"recovery.deadlines": {"checkpointSeconds": 120}})
    await scenario.until(lambda status: status.progress.step == 15)

    scenario.runtime.attempt.hangs = True  # type: ignore[union-attr]
    scenario.runtime.stage, since = stage, scenario.runtime.now
    await scenario.until(lambda status: status.restart_state.retry.intent is Cause.STALLED)

    assert timedelta(seconds=120) < scenario.runtime.now - since < timedelta(seconds=125)
    assert f"stage {stage} at step 15" in scenario.condition(ConditionType.STALLED)[2]


# Restart budget


@pytest.mark.row("B11")
async def test_rewritten_checkpoint_does_not_reset_restart_budget() -> None:
    scenario = make_scenario(
        {(n, 12): crashes_and_tears for n in range(1, 20)}, {"recovery.maxRestarts": 3}
    )

    await scenario.until_quiet()

    assert scenario.condition(ConditionType.FAILED)[1] == "RestartBudgetExhausted"
    assert len(scenario.attempts) == 1 + 3


@pytest.mark.row("B6")
async def test_restarts_after_preemption_are_delayed_without_using_restart_budget() -> None:
    preempted = exits(ExitCode.PREEMPTED)
    faults = {(n, 5): preempted for n in range(1, 6)}
    scenario = make_scenario(faults, {"recovery.maxRestarts": 0})

    await scenario.until_quiet()

    assert scenario.status.phase is Phase.SUCCEEDED
    assert scenario.status.restarts.since_progress == 0
    assert [round(delay, -1) for delay in scenario.delays if delay > 6] == [10, 20, 40, 80]


async def test_target_raised_during_run_adds_second_attempt() -> None:
    recovery = {"recovery.maxRestarts": 0, "recovery.backoffSeconds": 30}
    scenario = make_scenario(changes=recovery)
    await scenario.until(lambda status: status.progress.step == 30)

    scenario.edit(recovery | {"training.totalSteps": 70})
    await scenario.until_quiet()

    assert scenario.status.phase is Phase.SUCCEEDED
    assert causes(scenario) == [Cause.SUCCEEDED, Cause.SUCCEEDED]
    assert (scenario.status.progress.step, scenario.status.restarts.since_progress) == (70, 0)
    first, second = (each.started for each in scenario.attempts)
    assert first is not None
    assert second is not None
    pause = (second - first).total_seconds() - scenario.attempts[0].seconds
    assert 25 < pause < 45  # nor would an image that chooses its own target restart in a loop
    assert scenario.status.restart_state.spent.down_seconds == 0


# Spec


async def test_invalid_edit_does_not_stop_running_attempt() -> None:
    scenario = make_scenario()
    await scenario.until(lambda status: status.progress.step == 25)

    scenario.edit({"checkpoint.everySteps": 0})
    await scenario.until(lambda status: status.progress.step == 30)

    assert scenario.condition(ConditionType.ACCEPTED)[0] == "False"
    assert scenario.count(DeleteCluster) == 0
    scenario.edit({})
    await scenario.until_quiet()
    assert causes(scenario) == [Cause.SUCCEEDED]


async def test_invalid_spec_prevents_next_attempt() -> None:
    scenario = make_scenario({(1, 25): CRASH})
    await scenario.until(lambda status: status.progress.step == 20)

    scenario.edit({"checkpoint.everySteps": 0})
    await scenario.until_quiet()

    assert (scenario.status.phase, causes(scenario)) == (Phase.INVALID, [Cause.PROGRAM_ERROR])
    assert scenario.count(DeleteCluster) == 1
    scenario.edit({})
    await scenario.until_quiet()
    assert scenario.status.phase is Phase.SUCCEEDED


async def test_job_with_deletion_timestamp_does_not_cause_actions() -> None:
    scenario = make_scenario()
    await scenario.until(lambda status: status.attempt == 1)
    stamp = {"deletion_timestamp": "2026-11-21T12:00:00Z"}
    metadata = scenario.job.metadata.model_copy(update=stamp)
    scenario.job = scenario.job.model_copy(update={"metadata": metadata})
    performed, written = len(scenario.runtime.performed), len(scenario.runtime.statuses)

    await scenario.until_quiet()

    assert len(scenario.runtime.performed) == performed
    assert len(scenario.runtime.statuses) == written


# Clusters


async def test_stale_cluster_observation_does_not_use_restart_budget() -> None:
    class StaleCacheRuntime(FakeRuntime):
        stale_number = 0

        async def observe(self, job: Any) -> Any:
            observed = await super().observe(job)
            if self.stale_number:
                return type(observed)(
                    cluster=ClusterObserved(self.stale_number), is_head_reachable=False
                )
            return observed

    scenario = make_scenario({(1, 5): exits(ExitCode.RANKS_STUCK)})
    scenario.runtime = runtime = StaleCacheRuntime(faults=scenario.runtime.faults)
    await scenario.until(lambda status: status.cluster.number == 2)

    runtime.stale_number = 1
    for _ in range(3):
        await scenario.round()
    runtime.stale_number = 0
    await scenario.until_quiet()

    assert causes(scenario) == [Cause.RANKS_STUCK, Cause.SUCCEEDED]


@pytest.mark.parametrize("action", [CreateCluster, SubmitAttempt])
async def test_launch_tries_are_recorded_in_status_before_each_action(
    action: type[CreateCluster | SubmitAttempt],
) -> None:
    class FailingActionsRuntime(FakeRuntime):
        tries = 0

        async def perform(self, job: Any, requested: Any) -> None:
            if isinstance(requested, action) and self.tries < 3:
                self.tries += 1
                tries = [status.restart_state.launch.tries for status in self.statuses]
                assert job.status.restart_state.launch.tries == tries[-1]
                assert len(set(tries)) > self.tries
                raise AccessDenied("HTTP 403")
            await super().perform(job, requested)

    scenario = make_scenario()
    scenario.runtime = FailingActionsRuntime()

    assert (await scenario.until_quiet()).phase is Phase.SUCCEEDED


# Repeated failures


NAN = exits(ExitCode.NON_FINITE, "loss nan")


async def test_first_nonfinite_loss_restarts_with_same_configuration() -> None:
    scenario = make_scenario({(1, 26): NAN})

    await scenario.until_quiet()

    assert causes(scenario) == [Cause.NON_FINITE, Cause.SUCCEEDED]
    assert [c.skipped_steps for c in configs(scenario)] == [[], []]


async def test_second_nonfinite_loss_at_same_step_skips_prompts_and_checkpoint() -> None:
    scenario = make_scenario({(1, 26): NAN, (2, 26): NAN})

    await scenario.until_quiet()

    assert causes(scenario) == [Cause.NON_FINITE, Cause.NON_FINITE, Cause.SUCCEEDED]
    assert [c.skipped_steps for c in configs(scenario)] == [[], [], [27]]
    assert configs(scenario)[2].rejected_checkpoints == ["/20"]
    assert scenario.attempts[2].from_step == 10
    assert len({config.attempt.resume_hash for config in configs(scenario)}) == 1
    assert configs(scenario)[2].attempt.config_hash != configs(scenario)[1].attempt.config_hash


async def test_third_nonfinite_loss_at_same_step_fails_job() -> None:
    scenario = make_scenario({(n, 26): NAN for n in (1, 2, 3)})

    await scenario.until_quiet()

    status, reason, message = scenario.condition(ConditionType.FAILED)
    assert (status, reason) == ("True", "NonFinite")
    assert message == "loss nan (deterministic: 3 attempts ended this way after step 26)"


async def test_nonfinite_losses_at_different_steps_do_not_skip_prompts() -> None:
    scenario = make_scenario({(1, 26): NAN, (2, 37): NAN, (3, 48): NAN})

    await scenario.until_quiet()

    assert scenario.status.phase is Phase.SUCCEEDED
    assert configs(scenario)[-1].skipped_steps == []


async def test_rejected_checkpoint_is_not_reused() -> None:
    faults = {(1, 26): NAN, (2, 26): NAN, (3, 13): CRASH, (4, 33): CRASH}
    scenario = make_scenario(faults)

    await scenario.until_quiet()

    assert all(c.rejected_checkpoints == ["/20"] for c in configs(scenario)[2:])
    assert [record.from_step for record in scenario.attempts] == [0, 20, 10, 10, 10 + 20]


# Out of memory


async def test_out_of_memory_mitigation_is_applied_and_recorded_on_warm_restart() -> None:
    scenario = make_scenario({(1, 27): exits(ExitCode.CUDA_OUT_OF_MEMORY, "out of memory")})

    await scenario.until_quiet()

    first, second = configs(scenario)
    assert second.training.tokens_per_micro_batch * 2 == first.training.tokens_per_micro_batch
    assert first.attempt.resume_hash == second.attempt.resume_hash
    assert first.attempt.config_hash != second.attempt.config_hash
    record = scenario.attempts[1]
    assert (record.tier, record.from_step) == (Tier.WARM_CLUSTER, 20)
    assert record.mitigation == "MicroBatchHalved"


async def test_mitigation_depends_on_exhausted_memory_term() -> None:
    cases = {
        ("Engine", ExitCode.CUDA_OUT_OF_MEMORY): "SequencesHalved",
        ("Step", ExitCode.CUDA_OUT_OF_MEMORY): "MicroBatchHalved",
        ("HeadHost", ExitCode.HOST_OUT_OF_MEMORY): "WorkersHalved",
        ("AWordOfAnotherRelease", ExitCode.HOST_OUT_OF_MEMORY): "",
    }
    for (short_of, code), mitigation in cases.items():
        scenario = make_scenario({(1, 27): exits(code, "out of memory", short_of)})

        await scenario.until_quiet()

        assert scenario.attempts[1].mitigation == mitigation


@pytest.mark.row("D12")
async def test_out_of_memory_without_mitigation_fails_job_after_three_attempts() -> None:
    starved = exits(ExitCode.HOST_OUT_OF_MEMORY, "the driver: std::bad_alloc", "RolloutHost")
    scenario = make_scenario(
        {(number, 7): starved for number in range(1, 12)}, {"rollout.maxNumSeqs": 8}
    )

    await scenario.until_quiet()

    assert len(scenario.attempts) == 3
    value, reason, message = scenario.condition(ConditionType.FAILED)
    assert (value, reason) == ("True", "HostOutOfMemory")
    assert "no mitigation is left" in message


async def test_out_of_memory_fails_job_when_on_out_of_memory_is_fail() -> None:
    scenario = make_scenario(
        {(1, 27): exits(ExitCode.CUDA_OUT_OF_MEMORY, "out of memory")},
        {"recovery.onOutOfMemory": "Fail"},
    )

    await scenario.until_quiet()

    assert scenario.condition(ConditionType.FAILED) == ("True", "CudaOutOfMemory", "out of memory")


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
async def test_spec_changes_outside_resume_hash_keep_checkpoints_compatible(change: Any) -> None:
    scenario = make_scenario({(1, 27): CRASH})
    await scenario.until(lambda status: status.progress.step == 25)
    scenario.edit(change)

    await scenario.until_quiet()

    first, second = configs(scenario)
    assert first.attempt.resume_hash == second.attempt.resume_hash
    assert first.attempt.config_hash != second.attempt.config_hash or "recovery" in str(change)
    assert scenario.attempts[1].from_step == 20
