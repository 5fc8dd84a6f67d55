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
from raggrpo_operator.core.lifecycle.observed import RetrieverObserved
from support.builders.operator.jobs import KNOWN_TINY
from support.fakes.fake_runtime import (
    CRASH,
    T0,
    Attempt,
    FakeRuntime,
    Story,
    a_story,
    causes,
    crashes_and_tears,
    exits,
    failed_check,
    hangs,
    head_is_lost,
    until_step,
)

SHORT = {"recovery.deadlines": {"preflightSeconds": 30, "provisioningSeconds": 60}}


def tiers(story: Story) -> list[Tier]:
    return [record.tier for record in story.attempts]


async def test_job_runs_from_preflight_to_its_target() -> None:
    story = a_story()

    await story.until_quiet()

    assert story.status.phase is Phase.SUCCEEDED
    assert story.status.progress.step == 60
    assert story.status.progress.progress_percentage == 100
    assert causes(story) == [Cause.SUCCEEDED]
    kinds = [type(action).__name__ for action in story.runtime.performed]
    assert kinds == [
        "StartPreflight",
        "DeletePreflight",
        "CreateCluster",
        "SubmitAttempt",
        "DeleteCluster",
    ]


async def test_a_job_is_ready_while_it_trains_and_once_it_is_complete() -> None:
    story = a_story({(1, 27): CRASH})

    await until_step(story, 5)
    while_it_trains = story.condition(ConditionType.READY)[0]
    await story.until(lambda status: status.restarts.total == 1)
    after_a_crash = story.condition(ConditionType.READY)[0]
    await story.until_quiet()

    assert (while_it_trains, after_a_crash) == ("True", "False")
    assert story.condition(ConditionType.READY)[:2] == ("True", "Ready")


async def test_phases_come_in_order() -> None:
    story = a_story()

    await story.until_quiet()

    phases = [status.phase for status in story.runtime.statuses]
    assert list(dict.fromkeys(phases)) == [
        Phase.PREFLIGHT,
        Phase.PROVISIONING,
        Phase.STARTING,
        Phase.RUNNING,
        Phase.SUCCEEDED,
    ]


@pytest.mark.row("B10")
async def test_driver_crash_restarts_on_the_warm_cluster_from_the_last_checkpoint() -> None:
    story = a_story({(1, 27): CRASH})

    await story.until_quiet()

    assert story.status.phase is Phase.SUCCEEDED
    assert causes(story) == [Cause.PROGRAM_ERROR, Cause.SUCCEEDED]
    assert tiers(story) == [Tier.FIRST, Tier.WARM_CLUSTER]
    assert story.count(CreateCluster) == 1
    first, second = story.attempts
    assert (first.from_step, first.to_step, first.lost_steps) == (0, 27, 7)
    assert second.from_step == 20
    assert first.message == "ValueError: on purpose"
    assert story.status.restarts.by_cause == {"ProgramError": 1}
    assert story.condition(ConditionType.RESUME_VERIFIED)[:2] == ("True", "Verified")


async def test_first_failure_after_progress_restarts_at_once() -> None:
    story = a_story({(1, 27): CRASH, (2, 35): CRASH})

    await story.until_quiet()

    assert story.status.phase is Phase.SUCCEEDED
    assert max(story.delays) <= 5.0
    assert story.status.restarts.since_progress == 1
    assert story.status.restarts.total == 2


async def test_two_crashes_without_progress_get_a_new_cluster() -> None:
    story = a_story({(1, 5): CRASH, (2, 5): CRASH})

    await story.until_quiet()

    assert tiers(story) == [Tier.FIRST, Tier.WARM_CLUSTER, Tier.NEW_CLUSTER]
    assert story.count(CreateCluster) == 2
    job = story.job.metadata
    assert story.status.cluster.name == cluster_name(job.name, job.uid, 2)


async def test_a_cluster_on_which_every_attempt_gets_further_is_kept() -> None:
    story = a_story({(1, 3): CRASH, (2, 5): CRASH, (3, 7): CRASH, (4, 7): CRASH})

    await story.until_quiet()

    tiers = [attempt.tier for attempt in story.attempts]
    assert tiers == [Tier.FIRST, *[Tier.WARM_CLUSTER] * 3, Tier.NEW_CLUSTER]


async def test_new_cluster_gets_its_own_two_chances() -> None:
    story = a_story({(n, 5): CRASH for n in (1, 2, 3)})

    await story.until_quiet()

    assert tiers(story) == [
        Tier.FIRST,
        Tier.WARM_CLUSTER,
        Tier.NEW_CLUSTER,
        Tier.WARM_CLUSTER,
    ]


@pytest.mark.row("B6")
async def test_delays_double_without_progress_and_end_at_the_largest() -> None:
    changes = {"recovery.backoffSeconds": 10, "recovery.maxBackoffSeconds": 30}
    story = a_story({(n, 5): CRASH for n in range(1, 6)}, changes)

    await story.until_quiet()

    waits = [delay for delay in story.delays if delay > 6]
    assert [round(wait, -1) for wait in waits] == [10, 20, 30, 30]
    assert all(
        abs(wait - exact) <= 0.1 * exact + 1
        for wait, exact in zip(waits, (10, 20, 30, 30), strict=True)
    )


async def test_a_lost_cluster_is_deleted_before_the_delay() -> None:
    story = a_story({(n, 5): head_is_lost for n in (1, 2)}, {"recovery.backoffSeconds": 100})
    await story.until(lambda status: bool(status.restart_state.retry.next_retry_time))
    lost_at = story.runtime.now

    await story.round()

    assert story.runtime.performed[-1] == DeleteCluster(2)
    assert story.runtime.now - lost_at < timedelta(seconds=2)


async def test_a_cluster_whose_head_may_still_save_is_left_alone() -> None:
    def head_is_lost_and_saves(runtime: FakeRuntime, _: Attempt) -> None:
        runtime.lose_head(saves_seconds=50)

    story = a_story({(1, 33): head_is_lost_and_saves})
    await story.until(lambda status: status.restarts.total == 1)
    lost_at = story.runtime.now

    await story.until(lambda status: status.attempt == 2)

    assert story.runtime.now >= lost_at + timedelta(seconds=49)


@pytest.mark.row("B17")
async def test_lost_head_gets_a_new_cluster() -> None:
    story = a_story({(1, 33): head_is_lost})

    await story.until_quiet()

    assert causes(story) == [Cause.HEAD_LOST, Cause.SUCCEEDED]
    assert tiers(story) == [Tier.FIRST, Tier.NEW_CLUSTER]
    assert story.attempts[0].message == "head killed"
    assert story.attempts[1].from_step == 30


def head_is_succeeded(runtime: FakeRuntime, _: Attempt) -> None:
    runtime.lose_head(away_seconds=20)


@pytest.mark.row("B17")
async def test_a_lost_head_whose_successor_knows_the_cluster_costs_no_cluster() -> None:
    story = a_story({(1, 33): head_is_succeeded})

    await story.until_quiet()

    assert causes(story) == [Cause.HEAD_LOST, Cause.SUCCEEDED]
    assert tiers(story) == [Tier.FIRST, Tier.WARM_CLUSTER]
    assert story.count(CreateCluster) == 1


async def test_a_driver_saves_before_the_next_attempt_waits_for_another_head() -> None:
    def head_is_deleted(runtime: FakeRuntime, _: Attempt) -> None:
        runtime.lose_head(saves_seconds=50, away_seconds=70)

    story = a_story({(1, 33): head_is_deleted})
    await story.until(lambda status: status.restarts.total == 1)
    lost_at = story.runtime.now

    await story.until(lambda status: status.attempt == 2)
    assert story.runtime.now >= lost_at + timedelta(seconds=49)
    await story.until_quiet()

    assert tiers(story) == [Tier.FIRST, Tier.WARM_CLUSTER]


@pytest.mark.row("B17")
async def test_a_head_that_stays_away_for_longer_than_its_nodes_wait_costs_a_cluster() -> None:
    def head_stays_away(runtime: FakeRuntime, _: Attempt) -> None:
        runtime.lose_head(away_seconds=600)

    story = a_story({(1, 33): head_stays_away}, {"recovery.maxRestarts": 1})

    await story.until_quiet()

    assert causes(story) == [Cause.HEAD_LOST, Cause.SUCCEEDED]
    assert tiers(story) == [Tier.FIRST, Tier.NEW_CLUSTER]
    assert [each.cluster for each in story.attempts] == [1, 2]
    assert story.status.restarts.total == 1


async def test_heads_lost_again_and_again_without_a_new_step_get_a_new_cluster() -> None:
    again = {(1, 33): head_is_succeeded, (2, 31): head_is_succeeded, (3, 32): head_is_succeeded}
    story = a_story(again)

    await story.until_quiet()

    assert causes(story) == [*3 * [Cause.HEAD_LOST], Cause.SUCCEEDED]
    assert tiers(story) == [Tier.FIRST, Tier.WARM_CLUSTER, Tier.NEW_CLUSTER, Tier.WARM_CLUSTER]


def worker_is_lost(runtime: FakeRuntime, _: Attempt) -> None:
    runtime.lose_worker()


@pytest.mark.row("B10", "G6")
async def test_a_lost_worker_is_replaced_in_its_cluster() -> None:
    story = a_story({(1, 33): worker_is_lost})

    await story.until_quiet()

    assert causes(story) == [Cause.WORKER_LOST, Cause.SUCCEEDED]
    assert tiers(story) == [Tier.FIRST, Tier.WARM_CLUSTER]
    assert story.attempts[1].from_step == 30
    assert story.count(CreateCluster) == 1


async def test_workers_lost_again_and_again_without_a_new_step_get_a_new_cluster() -> None:
    story = a_story({(1, 33): worker_is_lost, (2, 31): worker_is_lost, (3, 32): worker_is_lost})

    await story.until_quiet()

    assert causes(story) == [*3 * [Cause.WORKER_LOST], Cause.SUCCEEDED]
    assert tiers(story) == [Tier.FIRST, Tier.WARM_CLUSTER, Tier.NEW_CLUSTER, Tier.WARM_CLUSTER]


async def test_head_that_forgot_the_attempt_has_restarted() -> None:
    def forgets(runtime: FakeRuntime, _: Attempt) -> None:
        runtime.attempt = None

    story = a_story({(1, 12): forgets})

    await story.until_quiet()

    assert causes(story) == [Cause.HEAD_LOST, Cause.SUCCEEDED]


@pytest.mark.row("B9")
async def test_success_before_the_target_is_a_failure() -> None:
    story = a_story({(1, 15): exits(0)})

    await story.until_quiet()

    assert causes(story) == [Cause.FALSE_SUCCESS, Cause.SUCCEEDED]
    assert "step 15, before step 60" in story.attempts[0].message


async def test_success_whose_progress_cannot_be_read_for_a_moment_is_no_failure() -> None:
    story = a_story()
    await story.until(lambda status: status.progress.step >= 58)
    story.runtime.is_blind = True
    story.runtime.now += timedelta(seconds=20)
    for _ in range(3):
        await story.round()
    story.runtime.is_blind = False

    await story.until_quiet()

    assert causes(story) == [Cause.SUCCEEDED]


async def test_success_whose_progress_can_never_be_read_is_not_believed() -> None:
    story = a_story()
    await story.until(lambda status: status.progress.step >= 58)
    story.runtime.is_blind = True
    await story.until(lambda status: status.attempts[0].cause is not None)
    story.runtime.is_blind = False

    await story.until_quiet()

    assert causes(story) == [Cause.FALSE_SUCCESS, Cause.SUCCEEDED]


@pytest.mark.row("B16")
async def test_status_keeps_the_last_ten_attempts_of_a_job_that_had_more() -> None:
    faults = {(number, 10 * number + 7): CRASH for number in range(1, 12)}
    story = a_story(faults, {"training.totalSteps": 130})

    await story.until_quiet()

    attempts = story.status.attempts
    assert [record.number for record in attempts] == list(range(12, 2, -1))
    assert attempts[0].cause is Cause.SUCCEEDED


@pytest.mark.row("B8")
async def test_resume_at_the_wrong_step_ends_the_attempt() -> None:
    def crashes_and_forgets(runtime: FakeRuntime, attempt: Attempt) -> None:
        runtime.resume_at = 10
        CRASH(runtime, attempt)

    story = a_story({(1, 27): crashes_and_forgets})

    await story.until_quiet()

    assert causes(story) == [Cause.PROGRAM_ERROR, Cause.RESUME_MISMATCH, Cause.SUCCEEDED]
    assert story.attempts[2].from_step is not None
    assert story.attempts[2].from_step >= 20


async def test_older_checkpoint_is_accepted_when_the_newer_was_skipped_with_a_reason() -> None:
    story = a_story({(1, 27): crashes_and_tears})

    await story.until_quiet()

    assert causes(story) == [Cause.PROGRAM_ERROR, Cause.SUCCEEDED]
    assert story.attempts[1].skipped_checkpoints == ["step_20: truncated"]
    assert "step_20: truncated" in story.condition(ConditionType.RESUME_VERIFIED)[2]


@pytest.mark.row("A30", "B23")
async def test_suspend_saves_frees_everything_and_resumes() -> None:
    story = a_story()
    await story.until(lambda status: status.progress.step >= 25)

    story.edit({"suspend": True})
    await story.until_quiet()
    suspended = story.status
    story.edit({})
    await story.until_quiet()

    assert suspended.phase is Phase.SUSPENDED
    assert story.count(StopAttempt) >= 1
    first, second = story.attempts
    assert first.cause is Cause.SUSPENDED
    assert second.from_step is not None
    assert second.from_step >= 25  # saved on the way out
    assert story.status.phase is Phase.SUCCEEDED
    assert story.status.restarts.total == 0
    assert (story.count(CreateCluster), story.count(DeleteCluster)) == (2, 2)


@pytest.mark.parametrize("when", [0, 1, 3, 10, 14, 22])
async def test_suspend_in_any_early_moment_leaves_nothing(when: int) -> None:
    story = a_story()
    for _ in range(when):
        await story.round()

    story.edit({"suspend": True})
    await story.until_quiet()

    suspended, clusters = story.status.phase, story.count(CreateCluster)
    assert clusters == story.count(DeleteCluster)
    story.edit({})
    await story.until_quiet()
    assert (suspended, story.status.phase) == (Phase.SUSPENDED, Phase.SUCCEEDED)


async def test_budget_is_exhausted_by_failures_without_progress() -> None:
    story = a_story({(n, 5): CRASH for n in range(1, 9)}, {"recovery.maxRestarts": 3})

    await story.until_quiet()

    assert story.status.phase is Phase.FAILED
    assert causes(story) == [Cause.PROGRAM_ERROR] * 4
    status, reason, message = story.condition(ConditionType.FAILED)
    assert (status, reason) == ("True", "RestartBudgetExhausted")
    assert "3 restarts without a new checkpoint, last ProgramError" in message
    assert story.count(CreateCluster) == story.count(DeleteCluster)


@pytest.mark.row("B11")
async def test_budget_is_reset_by_a_new_checkpoint() -> None:
    faults = {(n, 10 * n + 3): CRASH for n in range(1, 6)}  # each attempt saves once more
    story = a_story(faults, {"recovery.maxRestarts": 1})

    await story.until_quiet()

    assert story.status.phase is Phase.SUCCEEDED
    assert story.status.restarts.total == 5


async def test_no_restart_is_allowed_when_the_budget_is_zero() -> None:
    story = a_story({(1, 27): CRASH}, {"recovery.maxRestarts": 0})

    await story.until_quiet()

    assert story.condition(ConditionType.FAILED)[1] == "RestartBudgetExhausted"


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
async def test_causes_that_no_restart_can_cure_end_the_job(code: ExitCode, cause: Cause) -> None:
    story = a_story({(1, 5): exits(code, "look here")})

    await story.until_quiet()

    assert story.status.phase is Phase.FAILED
    assert story.condition(ConditionType.FAILED) == ("True", str(cause), "look here")


async def test_preflight_failure_names_all_checks_before_any_cluster() -> None:
    result = failed_check(CheckId.DATA_COLUMNS, "train.jsonl has no column prompt", 3)
    story = a_story(preflight_result=result)

    await story.until_quiet()

    assert story.status.phase is Phase.FAILED
    assert story.condition(ConditionType.FAILED) == (
        "True",
        "DataError",
        "DataColumns: train.jsonl has no column prompt",
    )
    assert story.count(CreateCluster) == 0


async def test_a_failed_preflight_shows_the_sizing_by_the_facts_it_read() -> None:
    result = failed_check(CheckId.DATA_COLUMNS, "no column prompt", 3)
    story = a_story(preflight_result=result.model_copy(update={"facts": KNOWN_TINY}))

    await story.until_quiet()

    reasons = [term.reason for term in story.status.sizing.terms if term.name == "dataset"]
    assert any(f"{KNOWN_TINY.rows} rows" in each for each in reasons)


async def test_mended_spec_after_a_failed_preflight_starts_over() -> None:
    result = failed_check(CheckId.DATA_COLUMNS, "no column prompt", 3)
    story = a_story(preflight_result=result)
    await story.until_quiet()

    story.runtime.preflight_result = a_story().runtime.preflight_result
    story.edit({"data.columns": {"prompt": "question"}})
    await story.until_quiet()

    assert story.status.phase is Phase.SUCCEEDED


async def test_lost_preflight_is_run_again() -> None:
    story = a_story(preflights=["lost", "lost"])

    await story.until_quiet()

    assert story.status.phase is Phase.SUCCEEDED
    assert story.count(StartPreflight) == 3


async def test_preflight_that_never_ends_fails_after_its_deadline() -> None:
    story = a_story(preflights=["hangs"], changes=SHORT)

    await story.until_quiet()

    assert story.status.phase is Phase.FAILED
    assert story.condition(ConditionType.FAILED)[1] == "PreflightFailed"
    assert "did not finish within 30 s" in story.condition(ConditionType.FAILED)[2]
    assert story.runtime.now - T0 < timedelta(seconds=40)


async def test_preflight_lost_again_and_again_fails_with_its_problem() -> None:
    story = a_story(preflights=["lost"] * 10_000)

    await story.until_quiet()

    assert story.status.phase is Phase.FAILED
    assert "evicted" in story.condition(ConditionType.FAILED)[2]


async def test_clock_of_the_preflight_stands_still_while_suspended() -> None:
    story = a_story(preflights=["hangs"], changes=SHORT)
    await story.until(lambda status: story.count(StartPreflight) == 1)
    story.edit(SHORT | {"suspend": True})
    await story.until_quiet()

    story.runtime.now += timedelta(days=1)
    story.edit(SHORT)
    await story.until_quiet()

    assert story.status.phase is Phase.SUCCEEDED


def asks_at(url: str) -> dict[str, Any]:
    endpoint = {"name": "kb", "url": url}
    retrieval = {"mode": "Prompt", "endpoints": [endpoint]}
    return {"retrieval": retrieval, "data.maxPromptLength": 400}


async def between_two_attempts(changes: dict[str, Any]) -> Story:
    """Return a story whose first attempt has ended and whose second has not begun."""
    story = a_story({(1, 27): CRASH}, changes)
    await story.until(lambda status: status.restarts.total == 1)
    assert (story.submitted, story.count(StartPreflight)) == ([1], 1)
    return story


@pytest.mark.row("A12")
async def test_another_url_is_checked_before_the_next_attempt_asks_it() -> None:
    story = await between_two_attempts(asks_at("http://kb:8000/retrieve"))
    before = len(story.runtime.performed)

    story.edit(asks_at("http://other:8000/retrieve"))
    await story.until_quiet()

    done = story.runtime.performed[before:]
    judged = [each for each in done if isinstance(each, StartPreflight | SubmitAttempt)]
    assert [type(each) for each in judged] == [StartPreflight, SubmitAttempt]
    urls = [each.config.retrieval.endpoints[0].url for each in judged]
    assert urls == 2 * ["http://other:8000/retrieve"]
    assert causes(story) == [Cause.PROGRAM_ERROR, Cause.SUCCEEDED]


async def test_another_url_that_fails_its_check_is_asked_by_no_attempt() -> None:
    story = await between_two_attempts(asks_at("http://kb:8000/retrieve"))

    result = failed_check(CheckId.RETRIEVAL_REACHABLE, "endpoint kb: no passages", 4)
    story.runtime.preflight_result = result
    story.edit(asks_at("http://other:8000/retrieve"))
    await story.until_quiet()

    assert story.submitted == [1]
    assert story.condition(ConditionType.FAILED)[1] == "PreflightFailed"
    assert story.count(CreateCluster) == story.count(DeleteCluster)


@pytest.mark.row("A12")
async def test_another_limit_of_restarts_is_no_reason_for_a_check() -> None:
    story = await between_two_attempts(asks_at("http://kb:8000/retrieve"))

    story.edit(asks_at("http://kb:8000/retrieve") | {"recovery.maxRestarts": 3})
    await story.until_quiet()

    assert story.count(StartPreflight) == 1
    assert (story.submitted, story.job.spec.recovery.max_restarts) == ([1, 2], 3)
    assert causes(story) == [Cause.PROGRAM_ERROR, Cause.SUCCEEDED]


@pytest.mark.row("A10", "B13")
async def test_hang_is_dumped_stopped_and_restarted() -> None:
    story = a_story({(1, 25): hangs})

    await story.until_quiet()

    assert causes(story) == [Cause.STALLED, Cause.SUCCEEDED]
    assert story.condition(ConditionType.STALLED)[:2] == ("False", "Moving")
    assert story.count(DumpStacks) == 1
    assert story.attempts[1].from_step == 20


async def test_time_in_which_nobody_looked_kills_nothing() -> None:
    story = a_story()
    await story.until(lambda status: status.progress.step >= 5)

    story.runtime.attempt.hangs = True  # type: ignore[union-attr]
    story.runtime.now += timedelta(hours=3)
    await story.round()
    story.runtime.attempt.hangs = False  # type: ignore[union-attr]
    await story.until_quiet()

    assert causes(story) == [Cause.SUCCEEDED]


async def test_dashboard_that_is_down_for_a_while_ends_nothing() -> None:
    story = a_story()
    await story.until(lambda status: status.progress.step >= 5)

    story.runtime.dashboard_is_down = True
    for _ in range(20):
        await story.round()
    story.runtime.dashboard_is_down = False
    await story.until_quiet()

    assert causes(story) == [Cause.SUCCEEDED]


@pytest.mark.row("B11")
async def test_deadline_over_all_attempts_ends_the_job() -> None:
    story = a_story({(1, 30): CRASH}, {"activeDeadlineSeconds": 60})

    await story.until_quiet()

    assert story.condition(ConditionType.FAILED)[1] == "DeadlineExceeded"
    assert story.runtime.now - T0 < timedelta(seconds=90)


async def test_raised_target_continues_a_finished_job() -> None:
    story = a_story()
    await story.until_quiet()

    story.edit({"training.totalSteps": 80})
    await story.until_quiet()

    assert story.status.phase is Phase.SUCCEEDED
    assert story.status.progress.step == 80
    assert story.attempts[1].from_step == 60
    assert story.count(StartPreflight) == 1


async def test_annotation_reopens_a_failed_job_with_a_fresh_budget() -> None:
    faults = {(n, 5): CRASH for n in (1, 2)}
    story = a_story(faults, {"recovery.maxRestarts": 1})
    await story.until_quiet()
    failed = story.status.phase

    story.retry("1")
    await story.until_quiet()

    assert (failed, story.status.phase) == (Phase.FAILED, Phase.SUCCEEDED)
    assert story.status.restarts.since_progress == 0


async def test_same_annotation_reopens_nothing() -> None:
    story = a_story({(1, 5): exits(ExitCode.DATA_ERROR)})
    story.retry("1")
    await story.until_quiet()
    before = len(story.runtime.performed)

    await story.until_quiet()

    assert story.status.phase is Phase.FAILED
    assert len(story.runtime.performed) == before


@pytest.mark.parametrize("fault", [None, exits(ExitCode.DATA_ERROR)])
async def test_nothing_happens_after_the_end(fault: Any) -> None:
    story = a_story({(1, 5): fault} if fault else {})
    await story.until_quiet()
    status, done = story.status, list(story.runtime.performed)

    story.runtime.now += timedelta(days=1)
    await story.until_quiet()

    assert story.status == status
    assert story.runtime.performed == done


async def test_cluster_that_never_gets_ready_ends_the_job_after_its_deadline() -> None:
    story = a_story(changes={"recovery.deadlines": {"provisioningSeconds": 3}})

    await story.until_quiet()

    assert story.condition(ConditionType.FAILED)[1] == "Unschedulable"
    assert story.count(CreateCluster) == story.count(DeleteCluster) == 1
    assert [(attempt.started, attempt.seconds) for attempt in story.attempts] == [(None, 0)]


RETRIEVAL = {
    "retrieval": {
        "mode": "Prompt",
        "endpoints": [{"name": "kb", "managed": {"corpus": "/mnt/runs/corpus.jsonl"}}],
    },
    "data.maxPromptLength": 400,
}


async def test_managed_retriever_is_started_before_and_stopped_after() -> None:
    story = a_story(changes=RETRIEVAL)

    await story.until_quiet()

    assert story.status.phase is Phase.SUCCEEDED
    assert (story.count(StartRetriever), story.count(StopRetrievers)) == (1, 1)


@pytest.mark.row("B21")
async def test_retriever_that_dies_while_training_is_started_again() -> None:
    story = a_story(changes=RETRIEVAL)
    await story.until(lambda status: status.progress.step >= 5)

    story.runtime.retrievers["kb"] = RetrieverObserved("kb", problem="killed", has_ended=True)
    await story.until_quiet()

    assert causes(story) == [Cause.SUCCEEDED]
    assert story.count(StartRetriever) == 2


async def test_retriever_that_refuses_its_corpus_fails_the_job() -> None:
    story = a_story(changes=RETRIEVAL)
    await story.until(lambda status: story.count(StartRetriever) == 1)

    story.runtime.retrievers["kb"] = RetrieverObserved(
        "kb", problem="line 2: no text", has_ended=True, cause=Cause.DATA_ERROR
    )
    await story.until_quiet()

    assert story.condition(ConditionType.FAILED) == ("True", "DataError", "kb: line 2: no text")


async def test_retriever_that_never_gets_ready_fails_after_the_provisioning_deadline() -> None:
    story = a_story(changes=RETRIEVAL | SHORT)
    await story.until(lambda status: story.count(StartRetriever) == 1)

    story.runtime.retrievers["kb"] = RetrieverObserved("kb", problem="loading")
    await story.until_quiet()

    status, reason, message = story.condition(ConditionType.FAILED)
    assert (status, reason) == ("True", "StartFailed")
    assert "kb: loading" in message


EVENTFUL = {(1, 27): CRASH, (2, 35): head_is_lost, (3, 41): hangs}


async def test_forgetting_everything_but_status_between_rounds_changes_no_decision() -> None:
    dropped, kept = a_story(EVENTFUL), a_story(EVENTFUL)
    kept.drops_process = False

    await dropped.until_quiet()
    await kept.until_quiet()

    assert dropped.runtime.statuses == kept.runtime.statuses
    assert dropped.runtime.performed == kept.runtime.performed


async def test_every_attempt_is_submitted_once_wherever_the_process_dies() -> None:
    faults = {(1, 7): CRASH, (2, 13): head_is_lost}
    shorter = {"training.totalSteps": 20}
    reference = a_story(faults, shorter)
    await reference.until_quiet()

    for crash in sorted(reference.runtime.rounds_with_actions):
        story = a_story(faults, shorter, crash_before_actions_of=crash)
        await story.until_quiet()

        assert story.status.phase is Phase.SUCCEEDED, crash
        assert story.submitted == [1, 2, 3], crash
        assert causes(story) == causes(reference), crash
        assert story.count(CreateCluster) == story.count(DeleteCluster), crash


async def test_a_backup_that_fails_is_told_and_ends_nothing() -> None:
    story = a_story()
    await story.until(lambda status: status.progress.step >= 15)
    assert story.condition(ConditionType.CHECKPOINT_HEALTHY) == ("True", "Saved", "step 10")

    story.runtime.backup_failure = "cannot copy /10 to s3://runs: down"
    await story.until(lambda status: status.progress.step >= 25)
    told = story.condition(ConditionType.CHECKPOINT_HEALTHY)
    story.runtime.backup_failure = ""
    await story.until_quiet()

    assert told == ("False", "BackupFailed", "step 20; cannot copy /10 to s3://runs: down")
    assert story.condition(ConditionType.CHECKPOINT_HEALTHY) == ("True", "Saved", "step 60")
    assert causes(story) == [Cause.SUCCEEDED]
