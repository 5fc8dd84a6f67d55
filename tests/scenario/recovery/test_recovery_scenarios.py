from datetime import timedelta
from typing import Any

import pytest

from raggrpo_api.names import cluster_name
from raggrpo_api.status.attempts import Tier
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import ConditionType, Phase
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.preflight import CheckId
from raggrpo_operator.core.lifecycle.actions import (
    CreateCluster,
    DeleteCluster,
    DumpStacks,
    StartPreflight,
    StartRetriever,
    StopAttempt,
    StopRetrievers,
    SubmitAttempt,
)
from raggrpo_operator.core.lifecycle.observed import ServiceObserved
from support.builders.operator.jobs import KNOWN_TINY
from support.fakes.fake_runtime import (
    CRASH,
    T0,
    Attempt,
    FakeRuntime,
    Scenario,
    causes,
    crashes_and_tears,
    exits,
    failed_check,
    hangs,
    head_is_lost,
    make_scenario,
    until_step,
)

SHORT = {"recovery.deadlines": {"preflightSeconds": 30, "provisioningSeconds": 60}}


def tiers(scenario: Scenario) -> list[Tier]:
    return [record.tier for record in scenario.attempts]


async def test_job_runs_from_preflight_to_its_target() -> None:
    scenario = make_scenario()

    await scenario.until_quiet()

    assert scenario.status.phase is Phase.SUCCEEDED
    assert scenario.status.progress.step == 60
    assert scenario.status.progress.progress_percentage == 100
    assert causes(scenario) == [Cause.SUCCEEDED]
    kinds = [type(action).__name__ for action in scenario.runtime.performed]
    assert kinds == [
        "StartPreflight",
        "DeletePreflight",
        "CreateCluster",
        "SubmitAttempt",
        "DeleteCluster",
    ]


async def test_ready_condition_is_true_while_training_and_after_success() -> None:
    scenario = make_scenario({(1, 27): CRASH})

    await until_step(scenario, 5)
    while_it_trains = scenario.condition(ConditionType.READY)[:2]
    await scenario.until(lambda status: status.restarts.total == 1)
    after_a_crash = scenario.condition(ConditionType.READY)[:2]
    await scenario.until_quiet()

    assert while_it_trains == ("True", "Training")
    assert after_a_crash == ("False", "ProgramError")
    assert scenario.condition(ConditionType.READY)[:2] == ("True", "TargetReached")


async def test_phases_are_reported_in_order() -> None:
    scenario = make_scenario()

    await scenario.until_quiet()

    phases = [status.phase for status in scenario.runtime.statuses]
    assert list(dict.fromkeys(phases)) == [
        Phase.PREFLIGHT,
        Phase.PROVISIONING,
        Phase.STARTING,
        Phase.RUNNING,
        Phase.SUCCEEDED,
    ]


@pytest.mark.row("B10")
async def test_driver_exit_resubmits_on_warm_cluster() -> None:
    scenario = make_scenario({(1, 27): CRASH})

    await scenario.until_quiet()

    assert scenario.status.phase is Phase.SUCCEEDED
    assert causes(scenario) == [Cause.PROGRAM_ERROR, Cause.SUCCEEDED]
    assert tiers(scenario) == [Tier.FIRST, Tier.WARM_CLUSTER]
    assert scenario.count(CreateCluster) == 1
    first, second = scenario.attempts
    assert (first.from_step, first.to_step, first.lost_steps) == (0, 27, 7)
    assert second.from_step == 20
    assert first.message == "ValueError: on purpose"
    assert scenario.status.restarts.by_cause == {"ProgramError": 1}
    assert scenario.condition(ConditionType.RESUME_VERIFIED)[:2] == ("True", "Verified")


async def test_first_failure_after_progress_restarts_at_once() -> None:
    scenario = make_scenario({(1, 27): CRASH, (2, 35): CRASH})

    await scenario.until_quiet()

    assert scenario.status.phase is Phase.SUCCEEDED
    assert max(scenario.delays) <= 5.0
    assert scenario.status.restarts.since_progress == 1
    assert scenario.status.restarts.total == 2


async def test_cluster_is_replaced_after_two_crashes_without_progress() -> None:
    scenario = make_scenario({(1, 5): CRASH, (2, 5): CRASH})

    await scenario.until_quiet()

    assert tiers(scenario) == [Tier.FIRST, Tier.WARM_CLUSTER, Tier.NEW_CLUSTER]
    assert scenario.count(CreateCluster) == 2
    job = scenario.job.metadata
    assert scenario.status.cluster.name == cluster_name(job.name, job.uid, 2)


async def test_cluster_is_kept_while_attempts_progress() -> None:
    scenario = make_scenario({(1, 3): CRASH, (2, 5): CRASH, (3, 7): CRASH, (4, 7): CRASH})

    await scenario.until_quiet()

    tiers = [attempt.tier for attempt in scenario.attempts]
    assert tiers == [Tier.FIRST, *[Tier.WARM_CLUSTER] * 3, Tier.NEW_CLUSTER]


async def test_new_cluster_is_used_for_two_attempts() -> None:
    scenario = make_scenario({(n, 5): CRASH for n in (1, 2, 3)})

    await scenario.until_quiet()

    assert tiers(scenario) == [
        Tier.FIRST,
        Tier.WARM_CLUSTER,
        Tier.NEW_CLUSTER,
        Tier.WARM_CLUSTER,
    ]


@pytest.mark.row("B6")
async def test_restart_backoff_doubles_up_to_maximum() -> None:
    changes = {"recovery.backoffSeconds": 10, "recovery.maxBackoffSeconds": 30}
    scenario = make_scenario({(n, 5): CRASH for n in range(1, 6)}, changes)

    await scenario.until_quiet()

    waits = [delay for delay in scenario.delays if delay > 6]
    assert [round(wait, -1) for wait in waits] == [10, 20, 30, 30]
    assert all(
        abs(wait - exact) <= 0.1 * exact + 1
        for wait, exact in zip(waits, (10, 20, 30, 30), strict=True)
    )


async def test_lost_cluster_is_deleted_before_backoff() -> None:
    scenario = make_scenario(
        {(n, 5): head_is_lost for n in (1, 2)}, {"recovery.backoffSeconds": 100}
    )
    await scenario.until(lambda status: bool(status.restart_state.retry.next_retry_time))
    lost_at = scenario.runtime.now

    await scenario.round()

    assert scenario.runtime.performed[-1] == DeleteCluster(2)
    assert scenario.runtime.now - lost_at < timedelta(seconds=2)


async def test_cluster_is_kept_while_driver_saves_after_head_loss() -> None:
    def head_is_lost_and_saves(runtime: FakeRuntime, _: Attempt) -> None:
        runtime.lose_head(saves_seconds=50)

    scenario = make_scenario({(1, 33): head_is_lost_and_saves})
    await scenario.until(lambda status: status.restarts.total == 1)
    lost_at = scenario.runtime.now

    await scenario.until(lambda status: status.attempt == 2)

    assert scenario.runtime.now >= lost_at + timedelta(seconds=49)


@pytest.mark.row("B17")
async def test_cluster_is_replaced_after_head_loss() -> None:
    scenario = make_scenario({(1, 33): head_is_lost})

    await scenario.until_quiet()

    assert causes(scenario) == [Cause.HEAD_LOST, Cause.SUCCEEDED]
    assert tiers(scenario) == [Tier.FIRST, Tier.NEW_CLUSTER]
    assert scenario.attempts[0].message == "head killed"
    assert scenario.attempts[1].from_step == 30


def head_is_succeeded(runtime: FakeRuntime, _: Attempt) -> None:
    runtime.lose_head(away_seconds=20)


@pytest.mark.row("B17")
async def test_cluster_is_kept_when_head_is_restored() -> None:
    scenario = make_scenario({(1, 33): head_is_succeeded})

    await scenario.until_quiet()

    assert causes(scenario) == [Cause.HEAD_LOST, Cause.SUCCEEDED]
    assert tiers(scenario) == [Tier.FIRST, Tier.WARM_CLUSTER]
    assert scenario.count(CreateCluster) == 1


async def test_driver_saves_before_head_is_replaced() -> None:
    def head_is_deleted(runtime: FakeRuntime, _: Attempt) -> None:
        runtime.lose_head(saves_seconds=50, away_seconds=70)

    scenario = make_scenario({(1, 33): head_is_deleted})
    await scenario.until(lambda status: status.restarts.total == 1)
    lost_at = scenario.runtime.now

    await scenario.until(lambda status: status.attempt == 2)
    assert scenario.runtime.now >= lost_at + timedelta(seconds=49)
    await scenario.until_quiet()

    assert tiers(scenario) == [Tier.FIRST, Tier.WARM_CLUSTER]


@pytest.mark.row("B17")
async def test_cluster_is_replaced_when_head_does_not_return_in_time() -> None:
    def head_stays_away(runtime: FakeRuntime, _: Attempt) -> None:
        runtime.lose_head(away_seconds=600)

    scenario = make_scenario({(1, 33): head_stays_away}, {"recovery.maxRestarts": 1})

    await scenario.until_quiet()

    assert causes(scenario) == [Cause.HEAD_LOST, Cause.SUCCEEDED]
    assert tiers(scenario) == [Tier.FIRST, Tier.NEW_CLUSTER]
    assert [each.cluster for each in scenario.attempts] == [1, 2]
    assert scenario.status.restarts.total == 1


async def test_cluster_is_replaced_after_repeated_head_loss_without_progress() -> None:
    again = {(1, 33): head_is_succeeded, (2, 31): head_is_succeeded, (3, 32): head_is_succeeded}
    scenario = make_scenario(again)

    await scenario.until_quiet()

    assert causes(scenario) == [*3 * [Cause.HEAD_LOST], Cause.SUCCEEDED]
    assert tiers(scenario) == [Tier.FIRST, Tier.WARM_CLUSTER, Tier.NEW_CLUSTER, Tier.WARM_CLUSTER]


def worker_is_lost(runtime: FakeRuntime, _: Attempt) -> None:
    runtime.lose_worker()


@pytest.mark.row("B10", "G6")
async def test_lost_worker_is_replaced_in_same_cluster() -> None:
    scenario = make_scenario({(1, 33): worker_is_lost})

    await scenario.until_quiet()

    assert causes(scenario) == [Cause.WORKER_LOST, Cause.SUCCEEDED]
    assert tiers(scenario) == [Tier.FIRST, Tier.WARM_CLUSTER]
    assert scenario.attempts[1].from_step == 30
    assert scenario.count(CreateCluster) == 1


async def test_cluster_is_replaced_after_repeated_worker_loss_without_progress() -> None:
    scenario = make_scenario(
        {(1, 33): worker_is_lost, (2, 31): worker_is_lost, (3, 32): worker_is_lost}
    )

    await scenario.until_quiet()

    assert causes(scenario) == [*3 * [Cause.WORKER_LOST], Cause.SUCCEEDED]
    assert tiers(scenario) == [Tier.FIRST, Tier.WARM_CLUSTER, Tier.NEW_CLUSTER, Tier.WARM_CLUSTER]


async def test_lost_submission_is_reported_as_head_lost() -> None:
    def restart_head(runtime: FakeRuntime, _: Attempt) -> None:
        runtime.attempt = None

    scenario = make_scenario({(1, 12): restart_head})

    await scenario.until_quiet()

    assert causes(scenario) == [Cause.HEAD_LOST, Cause.SUCCEEDED]


@pytest.mark.row("B9")
async def test_driver_success_before_target_has_cause_false_success() -> None:
    scenario = make_scenario({(1, 15): exits(0)})

    await scenario.until_quiet()

    assert causes(scenario) == [Cause.FALSE_SUCCESS, Cause.SUCCEEDED]
    assert "step 15, before step 60" in scenario.attempts[0].message


async def test_success_waits_for_readable_progress() -> None:
    scenario = make_scenario()
    await scenario.until(lambda status: status.progress.step >= 58)
    scenario.runtime.is_blind = True
    scenario.runtime.now += timedelta(seconds=20)
    for _ in range(3):
        await scenario.round()
    scenario.runtime.is_blind = False

    await scenario.until_quiet()

    assert causes(scenario) == [Cause.SUCCEEDED]


async def test_success_without_readable_progress_has_cause_false_success() -> None:
    scenario = make_scenario()
    await scenario.until(lambda status: status.progress.step >= 58)
    scenario.runtime.is_blind = True
    await scenario.until(lambda status: status.attempts[0].cause is not None)
    scenario.runtime.is_blind = False

    await scenario.until_quiet()

    assert causes(scenario) == [Cause.FALSE_SUCCESS, Cause.SUCCEEDED]


@pytest.mark.row("B16")
async def test_status_retains_last_ten_attempts() -> None:
    faults = {(number, 10 * number + 7): CRASH for number in range(1, 12)}
    scenario = make_scenario(faults, {"training.totalSteps": 130})

    await scenario.until_quiet()

    attempts = scenario.status.attempts
    assert [record.number for record in attempts] == list(range(12, 2, -1))
    assert attempts[0].cause is Cause.SUCCEEDED


@pytest.mark.row("B8")
async def test_resume_at_wrong_step_ends_attempt() -> None:
    def crash_without_checkpoint(runtime: FakeRuntime, attempt: Attempt) -> None:
        runtime.resume_at = 10
        CRASH(runtime, attempt)

    scenario = make_scenario({(1, 27): crash_without_checkpoint})

    await scenario.until_quiet()

    assert causes(scenario) == [Cause.PROGRAM_ERROR, Cause.RESUME_MISMATCH, Cause.SUCCEEDED]
    assert scenario.attempts[2].from_step is not None
    assert scenario.attempts[2].from_step >= 20


async def test_resume_from_older_checkpoint_is_accepted_with_reason() -> None:
    scenario = make_scenario({(1, 27): crashes_and_tears})

    await scenario.until_quiet()

    assert causes(scenario) == [Cause.PROGRAM_ERROR, Cause.SUCCEEDED]
    assert scenario.attempts[1].skipped_checkpoints == ["step_20: truncated"]
    assert "step_20: truncated" in scenario.condition(ConditionType.RESUME_VERIFIED)[2]


@pytest.mark.row("A30", "B23")
async def test_suspended_job_saves_frees_resources_and_resumes() -> None:
    scenario = make_scenario()
    await scenario.until(lambda status: status.progress.step >= 25)

    scenario.edit({"suspend": True})
    await scenario.until_quiet()
    suspended = scenario.status
    scenario.edit({})
    await scenario.until_quiet()

    assert suspended.phase is Phase.SUSPENDED
    assert scenario.count(StopAttempt) >= 1
    first, second = scenario.attempts
    assert first.cause is Cause.SUSPENDED
    assert second.from_step is not None
    assert second.from_step >= 25  # saved before the driver exited
    assert scenario.status.phase is Phase.SUCCEEDED
    assert scenario.status.restarts.total == 0
    assert (scenario.count(CreateCluster), scenario.count(DeleteCluster)) == (2, 2)


@pytest.mark.parametrize("when", [0, 1, 3, 10, 14, 22])
async def test_suspension_before_training_deletes_cluster(when: int) -> None:
    scenario = make_scenario()
    for _ in range(when):
        await scenario.round()

    scenario.edit({"suspend": True})
    await scenario.until_quiet()

    suspended, clusters = scenario.status.phase, scenario.count(CreateCluster)
    assert clusters == scenario.count(DeleteCluster)
    scenario.edit({})
    await scenario.until_quiet()
    assert (suspended, scenario.status.phase) == (Phase.SUSPENDED, Phase.SUCCEEDED)


async def test_restart_budget_is_exhausted_by_failures_without_progress() -> None:
    scenario = make_scenario({(n, 5): CRASH for n in range(1, 9)}, {"recovery.maxRestarts": 3})

    await scenario.until_quiet()

    assert scenario.status.phase is Phase.FAILED
    assert causes(scenario) == [Cause.PROGRAM_ERROR] * 4
    status, reason, message = scenario.condition(ConditionType.FAILED)
    assert (status, reason) == ("True", "RestartBudgetExhausted")
    assert "3 restarts without a new checkpoint; last cause ProgramError" in message
    assert scenario.count(CreateCluster) == scenario.count(DeleteCluster)


@pytest.mark.row("B11")
async def test_restart_budget_is_reset_by_new_checkpoint() -> None:
    faults = {(n, 10 * n + 3): CRASH for n in range(1, 6)}  # each attempt saves once more
    scenario = make_scenario(faults, {"recovery.maxRestarts": 1})

    await scenario.until_quiet()

    assert scenario.status.phase is Phase.SUCCEEDED
    assert scenario.status.restarts.total == 5


async def test_zero_restart_budget_does_not_allow_restart() -> None:
    scenario = make_scenario({(1, 27): CRASH}, {"recovery.maxRestarts": 0})

    await scenario.until_quiet()

    assert scenario.condition(ConditionType.FAILED)[1] == "RestartBudgetExhausted"


@pytest.mark.row("B6")
@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (ExitCode.CONFIG_ERROR, Cause.CONFIG_ERROR),
        (ExitCode.VOLUME_FULL, Cause.VOLUME_FULL),
        (ExitCode.CHECKPOINT_PATH_IN_USE, Cause.CHECKPOINT_PATH_IN_USE),
        (ExitCode.CHECKPOINT_INCOMPATIBLE, Cause.CHECKPOINT_INCOMPATIBLE),
    ],
)
async def test_attempt_with_permanent_cause_fails_job(code: ExitCode, cause: Cause) -> None:
    scenario = make_scenario({(1, 5): exits(code, "look here")})

    await scenario.until_quiet()

    assert scenario.status.phase is Phase.FAILED
    assert scenario.condition(ConditionType.FAILED) == ("True", str(cause), "look here")


async def test_failed_preflight_fails_job_without_creating_cluster() -> None:
    result = failed_check(CheckId.DATA_COLUMNS, "train.jsonl has no column prompt", 3)
    scenario = make_scenario(preflight_result=result)

    await scenario.until_quiet()

    assert scenario.status.phase is Phase.FAILED
    assert scenario.condition(ConditionType.FAILED) == (
        "True",
        "DataError",
        "DataColumns: train.jsonl has no column prompt",
    )
    assert scenario.count(CreateCluster) == 0


async def test_status_shows_sizing_from_facts_after_failed_preflight() -> None:
    result = failed_check(CheckId.DATA_COLUMNS, "no column prompt", 3)
    scenario = make_scenario(preflight_result=result.model_copy(update={"facts": KNOWN_TINY}))

    await scenario.until_quiet()

    reasons = [term.reason for term in scenario.status.sizing.terms if term.name == "dataset"]
    assert any(f"{KNOWN_TINY.rows} rows" in each for each in reasons)


async def test_job_restarts_when_spec_is_fixed_after_failed_preflight() -> None:
    result = failed_check(CheckId.DATA_COLUMNS, "no column prompt", 3)
    scenario = make_scenario(preflight_result=result)
    await scenario.until_quiet()

    scenario.runtime.preflight_result = make_scenario().runtime.preflight_result
    scenario.edit({"data.columns": {"prompt": "question"}})
    await scenario.until_quiet()

    assert scenario.status.phase is Phase.SUCCEEDED


async def test_lost_preflight_is_repeated() -> None:
    scenario = make_scenario(preflights=["lost", "lost"])

    await scenario.until_quiet()

    assert scenario.status.phase is Phase.SUCCEEDED
    assert scenario.count(StartPreflight) == 3


async def test_preflight_deadline_fails_job() -> None:
    scenario = make_scenario(preflights=["hangs"], changes=SHORT)

    await scenario.until_quiet()

    assert scenario.status.phase is Phase.FAILED
    assert scenario.condition(ConditionType.FAILED)[1] == "PreflightFailed"
    assert "did not finish within 30 s" in scenario.condition(ConditionType.FAILED)[2]
    assert scenario.runtime.now - T0 < timedelta(seconds=40)


async def test_repeatedly_lost_preflight_fails_with_reason() -> None:
    scenario = make_scenario(preflights=["lost"] * 10_000)

    await scenario.until_quiet()

    assert scenario.status.phase is Phase.FAILED
    assert "evicted" in scenario.condition(ConditionType.FAILED)[2]


async def test_preflight_timer_pauses_while_suspended() -> None:
    scenario = make_scenario(preflights=["hangs"], changes=SHORT)
    await scenario.until(lambda status: scenario.count(StartPreflight) == 1)
    scenario.edit(SHORT | {"suspend": True})
    await scenario.until_quiet()

    scenario.runtime.now += timedelta(days=1)
    scenario.edit(SHORT)
    await scenario.until_quiet()

    assert scenario.status.phase is Phase.SUCCEEDED


def asks_at(url: str) -> dict[str, Any]:
    endpoint = {"name": "kb", "url": url}
    retrieval = {"mode": "Prompt", "endpoints": [endpoint]}
    return {"retrieval": retrieval, "data.maxPromptLength": 400}


async def between_two_attempts(changes: dict[str, Any]) -> Scenario:
    """Return a scenario whose first attempt has ended and whose second has not started."""
    scenario = make_scenario({(1, 27): CRASH}, changes)
    await scenario.until(lambda status: status.restarts.total == 1)
    assert (scenario.submitted, scenario.count(StartPreflight)) == ([1], 1)
    return scenario


@pytest.mark.row("A12")
async def test_changed_url_is_checked_before_next_attempt() -> None:
    scenario = await between_two_attempts(asks_at("http://kb:8000/retrieve"))
    before = len(scenario.runtime.performed)

    scenario.edit(asks_at("http://other:8000/retrieve"))
    await scenario.until_quiet()

    done = scenario.runtime.performed[before:]
    judged = [each for each in done if isinstance(each, StartPreflight | SubmitAttempt)]
    assert [type(each) for each in judged] == [StartPreflight, SubmitAttempt]
    urls = [each.config.retrieval.endpoints[0].url for each in judged]
    assert urls == 2 * ["http://other:8000/retrieve"]
    assert causes(scenario) == [Cause.PROGRAM_ERROR, Cause.SUCCEEDED]


async def test_preflight_failure_for_changed_url_fails_job() -> None:
    scenario = await between_two_attempts(asks_at("http://kb:8000/retrieve"))

    result = failed_check(CheckId.RETRIEVAL_REACHABLE, "endpoint kb: no passages", 4)
    scenario.runtime.preflight_result = result
    scenario.edit(asks_at("http://other:8000/retrieve"))
    await scenario.until_quiet()

    assert scenario.submitted == [1]
    assert scenario.condition(ConditionType.FAILED)[1] == "PreflightFailed"
    assert scenario.count(CreateCluster) == scenario.count(DeleteCluster)


@pytest.mark.row("A12")
async def test_changing_restart_limit_does_not_repeat_preflight() -> None:
    scenario = await between_two_attempts(asks_at("http://kb:8000/retrieve"))

    scenario.edit(asks_at("http://kb:8000/retrieve") | {"recovery.maxRestarts": 3})
    await scenario.until_quiet()

    assert scenario.count(StartPreflight) == 1
    assert (scenario.submitted, scenario.job.spec.recovery.max_restarts) == ([1, 2], 3)
    assert causes(scenario) == [Cause.PROGRAM_ERROR, Cause.SUCCEEDED]


@pytest.mark.row("A10", "B13")
async def test_stalled_attempt_dumps_stacks_stops_and_restarts() -> None:
    scenario = make_scenario({(1, 25): hangs})

    await scenario.until_quiet()

    assert causes(scenario) == [Cause.STALLED, Cause.SUCCEEDED]
    assert scenario.condition(ConditionType.STALLED)[:2] == ("False", "MakingProgress")
    assert scenario.count(DumpStacks) == 1
    assert scenario.attempts[1].from_step == 20


async def test_unobserved_time_does_not_count_as_stall() -> None:
    scenario = make_scenario()
    await scenario.until(lambda status: status.progress.step >= 5)

    scenario.runtime.attempt.hangs = True  # type: ignore[union-attr]
    scenario.runtime.now += timedelta(hours=3)
    await scenario.round()
    scenario.runtime.attempt.hangs = False  # type: ignore[union-attr]
    await scenario.until_quiet()

    assert causes(scenario) == [Cause.SUCCEEDED]


async def test_unreachable_dashboard_does_not_end_attempt() -> None:
    scenario = make_scenario()
    await scenario.until(lambda status: status.progress.step >= 5)

    scenario.runtime.dashboard_is_down = True
    for _ in range(20):
        await scenario.round()
    scenario.runtime.dashboard_is_down = False
    await scenario.until_quiet()

    assert causes(scenario) == [Cause.SUCCEEDED]


@pytest.mark.row("B11")
async def test_active_deadline_fails_job() -> None:
    scenario = make_scenario({(1, 30): CRASH}, {"activeDeadlineSeconds": 60})

    await scenario.until_quiet()

    assert scenario.condition(ConditionType.FAILED)[1] == "DeadlineExceeded"
    assert scenario.runtime.now - T0 < timedelta(seconds=90)


async def test_raised_target_reopens_finished_job() -> None:
    scenario = make_scenario()
    await scenario.until_quiet()

    scenario.edit({"training.totalSteps": 80})
    await scenario.until_quiet()

    assert scenario.status.phase is Phase.SUCCEEDED
    assert scenario.status.progress.step == 80
    assert scenario.attempts[1].from_step == 60
    assert scenario.count(StartPreflight) == 1


async def test_retry_annotation_reopens_failed_job_with_new_restart_budget() -> None:
    faults = {(n, 5): CRASH for n in (1, 2)}
    scenario = make_scenario(faults, {"recovery.maxRestarts": 1})
    await scenario.until_quiet()
    failed = scenario.status.phase

    scenario.retry("1")
    await scenario.until_quiet()

    assert (failed, scenario.status.phase) == (Phase.FAILED, Phase.SUCCEEDED)
    assert scenario.status.restarts.since_progress == 0


async def test_unchanged_retry_annotation_does_not_reopen_job() -> None:
    scenario = make_scenario({(1, 5): exits(ExitCode.DATA_ERROR)})
    scenario.retry("1")
    await scenario.until_quiet()
    before = len(scenario.runtime.performed)

    await scenario.until_quiet()

    assert scenario.status.phase is Phase.FAILED
    assert len(scenario.runtime.performed) == before


@pytest.mark.parametrize("fault", [None, exits(ExitCode.DATA_ERROR)])
async def test_finished_job_does_not_cause_actions(fault: Any) -> None:
    scenario = make_scenario({(1, 5): fault} if fault else {})
    await scenario.until_quiet()
    status, done = scenario.status, list(scenario.runtime.performed)

    scenario.runtime.now += timedelta(days=1)
    await scenario.until_quiet()

    assert scenario.status == status
    assert scenario.runtime.performed == done


async def test_cluster_not_ready_by_deadline_fails_job() -> None:
    scenario = make_scenario(changes={"recovery.deadlines": {"provisioningSeconds": 3}})

    await scenario.until_quiet()

    assert scenario.condition(ConditionType.FAILED)[1] == "Unschedulable"
    assert scenario.count(CreateCluster) == scenario.count(DeleteCluster) == 1
    assert [(attempt.started, attempt.seconds) for attempt in scenario.attempts] == [(None, 0)]


RETRIEVAL = {
    "retrieval": {
        "mode": "Prompt",
        "endpoints": [{"name": "kb", "managed": {"corpus": "/mnt/runs/corpus.jsonl"}}],
    },
    "data.maxPromptLength": 400,
}


async def test_managed_retriever_runs_for_lifetime_of_job() -> None:
    scenario = make_scenario(changes=RETRIEVAL)

    await scenario.until_quiet()

    assert scenario.status.phase is Phase.SUCCEEDED
    assert (scenario.count(StartRetriever), scenario.count(StopRetrievers)) == (1, 1)


@pytest.mark.row("B21")
async def test_lost_retriever_is_restarted_during_training() -> None:
    scenario = make_scenario(changes=RETRIEVAL)
    await scenario.until(lambda status: status.progress.step >= 5)

    scenario.runtime.retrievers["kb"] = ServiceObserved(
        "kb", "http://kb", problem="killed", has_ended=True
    )
    await scenario.until_quiet()

    assert causes(scenario) == [Cause.SUCCEEDED]
    assert scenario.count(StartRetriever) == 2


async def test_rejected_corpus_fails_job() -> None:
    scenario = make_scenario(changes=RETRIEVAL)
    await scenario.until(lambda status: scenario.count(StartRetriever) == 1)

    scenario.runtime.retrievers["kb"] = ServiceObserved(
        "kb", "http://kb", problem="line 2: no text", has_ended=True, cause=Cause.DATA_ERROR
    )
    await scenario.until_quiet()

    assert scenario.condition(ConditionType.FAILED) == ("True", "DataError", "kb: line 2: no text")


async def test_retriever_not_ready_by_deadline_fails_job() -> None:
    scenario = make_scenario(changes=RETRIEVAL | SHORT)
    await scenario.until(lambda status: scenario.count(StartRetriever) == 1)

    scenario.runtime.retrievers["kb"] = ServiceObserved("kb", "http://kb", problem="loading")
    await scenario.until_quiet()

    status, reason, message = scenario.condition(ConditionType.FAILED)
    assert (status, reason) == ("True", "StartFailed")
    assert "kb: loading" in message


EVENTFUL = {(1, 27): CRASH, (2, 35): head_is_lost, (3, 41): hangs}


async def test_decisions_depend_only_on_status_and_observations() -> None:
    dropped, kept = make_scenario(EVENTFUL), make_scenario(EVENTFUL)
    kept.drops_process = False

    await dropped.until_quiet()
    await kept.until_quiet()

    assert dropped.runtime.statuses == kept.runtime.statuses
    assert dropped.runtime.performed == kept.runtime.performed


async def test_attempts_are_submitted_once_despite_operator_crashes() -> None:
    faults = {(1, 7): CRASH, (2, 13): head_is_lost}
    shorter = {"training.totalSteps": 20}
    reference = make_scenario(faults, shorter)
    await reference.until_quiet()

    for crash in sorted(reference.runtime.rounds_with_actions):
        scenario = make_scenario(faults, shorter, crash_before_actions_of=crash)
        await scenario.until_quiet()

        assert scenario.status.phase is Phase.SUCCEEDED, crash
        assert scenario.submitted == [1, 2, 3], crash
        assert causes(scenario) == causes(reference), crash
        assert scenario.count(CreateCluster) == scenario.count(DeleteCluster), crash


async def test_failed_backup_is_reported_and_job_continues() -> None:
    scenario = make_scenario()
    await scenario.until(lambda status: status.progress.step >= 15)
    assert scenario.condition(ConditionType.CHECKPOINT_HEALTHY) == ("True", "Saved", "step 10")

    scenario.runtime.backup_failure = "cannot copy /10 to s3://runs: down"
    await scenario.until(lambda status: status.progress.step >= 25)
    condition = scenario.condition(ConditionType.CHECKPOINT_HEALTHY)
    scenario.runtime.backup_failure = ""
    await scenario.until_quiet()

    assert condition == ("False", "BackupFailed", "step 20; cannot copy /10 to s3://runs: down")
    assert scenario.condition(ConditionType.CHECKPOINT_HEALTHY) == ("True", "Saved", "step 60")
    assert causes(scenario) == [Cause.SUCCEEDED]


async def test_checkpoint_is_unhealthy_after_full_volume_until_next_save() -> None:
    scenario = make_scenario({(1, 15): exits(ExitCode.VOLUME_FULL, "no space left: /mnt/runs")})

    await scenario.until_quiet()

    kind = ConditionType.CHECKPOINT_HEALTHY
    assert scenario.condition(kind)[:2] == ("False", "VolumeFull")
    assert "no space left" in scenario.condition(kind)[2]
    scenario.retry("1")
    await until_step(scenario, 11)
    assert scenario.condition(kind)[:2] == ("False", "VolumeFull")
    await until_step(scenario, 21)
    assert scenario.condition(kind)[:2] == ("True", "Saved")


async def test_step_does_not_fall_back_to_zero_while_next_attempt_loads() -> None:
    scenario = make_scenario({(1, 15): CRASH})

    await scenario.until_quiet()

    steps = [status.progress.step_of_total for status in scenario.runtime.statuses]
    assert "0/60" not in steps[steps.index("15/60") :]
    assert "11/60" in steps[steps.index("15/60") :]


async def test_lost_steps_are_reported_once_attempt_resumes() -> None:
    scenario = make_scenario({(1, 15): CRASH})

    await scenario.until_quiet()

    assert scenario.condition(ConditionType.RESUME_VERIFIED)[2] == (
        "attempt 2: started from step 10; 5 steps of attempt 1 lost"
    )
