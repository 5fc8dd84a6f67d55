"""Jobs that push their results once they are complete."""

from collections.abc import Mapping
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from raggrpo_api.status.conditions import ConditionType, Phase
from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.status.sizing import PodRole
from raggrpo_api.trainer.staging import PushOutcome, StagingReason
from raggrpo_operator.core.lifecycle.actions import (
    DeleteCluster,
    DeletePush,
    StartPush,
    SubmitAttempt,
)
from raggrpo_operator.core.lifecycle.after_attempt.push import MAX_OOM_KILLS, MAX_TRIES, is_push_due
from raggrpo_operator.core.sizing.size import sizing_for
from raggrpo_operator.core.state.conditions import get_condition
from raggrpo_operator.core.text.status_text import render_status
from raggrpo_operator.kubernetes_runtime.rounds.events import transitions
from raggrpo_operator.kubernetes_runtime.rounds.time_to_live import seconds_until_expiry
from support.fakes.fake_runtime import CRASH, Scenario, make_scenario

TARGET = "hf://org/result"
PUSH = {"output": {"push": TARGET}}


def make_pushing(*pushes: PushOutcome | str, **changes: Any) -> Scenario:
    return make_scenario(changes={**PUSH, **changes}, pushes=list(pushes))


def make_failure(reason: StagingReason) -> PushOutcome:
    return PushOutcome(reason=reason, message=f"{TARGET}: {reason}; fix it")


def result_pushed(status: JobStatus) -> tuple[str, str]:
    condition = get_condition(status, ConditionType.RESULT_PUSHED)
    return condition.status, condition.reason


@pytest.mark.row("F3")
async def test_results_are_pushed_after_cluster_is_deleted() -> None:
    scenario = make_pushing()

    status = await scenario.until_quiet()

    assert status.phase is Phase.SUCCEEDED
    assert result_pushed(status) == ("True", "Pushed")
    pushed = status.push
    assert (pushed.url, pushed.revision, pushed.bytes) == (TARGET, "c0ffee", 2 * 10**9)
    kinds = [type(each) for each in scenario.runtime.performed]
    assert kinds.index(DeleteCluster) < kinds.index(StartPush)
    assert kinds.count(StartPush) == 1
    assert kinds[-1] is DeletePush
    assert "pushed    hf://org/result, revision c0ffee" in render_status(status)


async def test_job_is_complete_while_results_are_being_pushed() -> None:
    scenario = make_pushing()
    status = await scenario.until(lambda status: result_pushed(status)[1] == "Pushing")
    assert status.phase is Phase.SUCCEEDED
    assert get_condition(status, ConditionType.READY).status == "True"


async def test_push_reports_progress() -> None:
    scenario = make_pushing()
    await scenario.until(
        lambda status: (
            get_condition(status, ConditionType.RESULT_PUSHED).message == "Uploading 0.5 of 2.0 GB"
        )
    )


@pytest.mark.parametrize(("best_step", "exports"), [(None, False), (60, False), (20, True)])
async def test_push_requests_memory_for_export_when_best_checkpoint_is_earlier(
    best_step: int | None, exports: bool
) -> None:
    scenario = make_pushing()
    scenario.runtime.best_step = best_step

    status = await scenario.until_quiet()

    [start] = [each for each in scenario.runtime.performed if isinstance(each, StartPush)]
    names = [each.name for each in start.plan.sizing.terms if each.resource == "pushMemory"]
    assert names == ["clients", *(["export"] if exports else [])]
    assert status.sizing == start.plan.sizing


async def test_failed_login_of_push_names_secret() -> None:
    env = [{"name": "HF_TOKEN", "secretKeyRef": {"name": "hub", "key": "token"}}]
    outcome = PushOutcome(reason=StagingReason.ACCESS_DENIED, message="denied; pass HF_TOKEN")
    status = await make_pushing(outcome, env=env).until_quiet()
    message = get_condition(status, ConditionType.RESULT_PUSHED).message
    assert message == "denied; pass HF_TOKEN; HF_TOKEN is from Secret hub, key token (spec.env[0])"


async def test_push_is_repeated_after_transient_failures() -> None:
    scenario = make_pushing(make_failure(StagingReason.UNREACHABLE), "evicted")

    status = await scenario.until(
        lambda status: result_pushed(status) == ("Unknown", StagingReason.UNREACHABLE)
    )
    message = get_condition(status, ConditionType.RESULT_PUSHED).message
    assert f"try 2 of {MAX_TRIES} at " in message
    status = await scenario.until_quiet()

    assert status.phase is Phase.SUCCEEDED
    assert result_pushed(status) == ("True", "Pushed")
    assert scenario.count(StartPush) == 3
    assert status.push.failed_tries == 2


OOM = "pod p ran out of memory (OOMKilled, limit 2Gi)"


async def test_push_that_runs_out_of_memory_gets_twice_the_memory() -> None:
    scenario = make_pushing(OOM, "evicted", OOM)

    status = await scenario.until(lambda status: status.push.failed_tries == 1)
    message = get_condition(status, ConditionType.RESULT_PUSHED).message
    assert message.startswith(f"{OOM}; the next pod has twice the memory; try 2 of {MAX_TRIES} at ")
    status = await scenario.until_quiet()

    assert result_pushed(status) == ("True", "Pushed")
    starts = [each for each in scenario.runtime.performed if isinstance(each, StartPush)]
    pods = [sizing_for(each.plan.sizing, PodRole.PUSH) for each in starts]
    assert [each.memory for each in pods] == ["2Gi", "4Gi", "4Gi", "8Gi"]
    assert status.push.out_of_memory_kills == 2


async def test_push_that_needs_even_more_memory_is_reported_with_remedy() -> None:
    scenario = make_pushing(*[OOM] * 20)

    status = await scenario.until_quiet()

    assert status.phase is Phase.SUCCEEDED
    assert result_pushed(status) == ("False", "NoResult")
    assert scenario.count(StartPush) == MAX_OOM_KILLS
    message = get_condition(status, ConditionType.RESULT_PUSHED).message
    assert message == (
        f"{OOM}; push {scenario.job.spec.checkpoint.path}/export with python -m "
        f"raggrpo_staging.push where more memory is available ({MAX_OOM_KILLS} tries)"
    )


@pytest.mark.parametrize(
    ("outcome", "pushes", "reason"),
    [
        (make_failure(StagingReason.TOKEN_MISSING), 1, "TokenMissing"),
        (make_failure(StagingReason.EXPORT_FAILED), 1, "ExportFailed"),
        (make_failure(StagingReason.RATE_LIMITED), MAX_TRIES, "RateLimited"),
        ("evicted", MAX_TRIES, "NoResult"),
    ],
)
async def test_failed_push_leaves_job_succeeded(
    outcome: PushOutcome | str, pushes: int, reason: str
) -> None:
    scenario = make_pushing(*[outcome] * 20)

    status = await scenario.until_quiet()

    assert status.phase is Phase.SUCCEEDED
    assert result_pushed(status) == ("False", reason)
    assert scenario.count(StartPush) == pushes
    assert f"ResultPushed=False {reason}" in render_status(status)
    written = scenario.runtime.statuses
    notes = [
        event.note
        for old, new in pairwise(written)
        for event in transitions(old, new)
        if event.reason == reason and event.is_warning
    ]
    assert notes[-1].startswith("Pushing the results failed: ")


async def test_push_continues_after_each_crash_of_operator() -> None:
    first = make_pushing()
    await first.until(lambda status: status.phase is Phase.SUCCEEDED)
    before = len(first.runtime.statuses)
    expected = await first.until_quiet()
    for number in range(before, len(first.runtime.statuses) + 1):
        scenario = make_pushing()
        scenario.runtime.crash_before_actions_of = number
        status = await scenario.until_quiet()
        assert status.push == expected.push
        assert result_pushed(status) == ("True", "Pushed")
        assert scenario.count(StartPush) == 1


@pytest.mark.parametrize("changes", [{}, {"output": {"push": "s3://bucket/other"}}])
async def test_retry_or_new_target_repeats_failed_push(changes: Mapping[str, Any]) -> None:
    scenario = make_pushing(make_failure(StagingReason.ACCESS_DENIED))
    await scenario.until_quiet()
    if changes:
        scenario.edit(changes)
    else:
        scenario.retry("1")

    status = await scenario.until_quiet()

    assert result_pushed(status) == ("True", "Pushed")
    assert scenario.count(SubmitAttempt) == 1
    assert scenario.count(StartPush) == 2
    assert status.push.failed_tries == 0


async def test_results_of_continued_job_are_pushed_again() -> None:
    scenario = make_pushing()
    await scenario.until_quiet()
    scenario.edit({**PUSH, "training.totalSteps": 80})

    status = await scenario.until_quiet()

    assert status.progress.step == 80
    assert result_pushed(status) == ("True", "Pushed")
    assert scenario.count(StartPush) == 2


async def test_failed_job_pushes_nothing() -> None:
    scenario = make_scenario({(1, 30): CRASH}, changes={**PUSH, "recovery.maxRestarts": 0})
    status = await scenario.until_quiet()
    assert status.phase is Phase.FAILED
    assert scenario.count(StartPush) == 0


async def test_suspended_complete_job_pushes_once_it_is_resumed() -> None:
    scenario = make_pushing()
    await scenario.until(lambda status: result_pushed(status)[1] == "Pushing")
    scenario.edit({**PUSH, "suspend": True})
    status = await scenario.until_quiet()
    assert result_pushed(status) == ("Unknown", "Pushing")

    scenario.edit(PUSH)

    assert result_pushed(await scenario.until_quiet()) == ("True", "Pushed")


async def test_job_is_not_deleted_before_its_results_are_pushed() -> None:
    failure = make_failure(StagingReason.UNREACHABLE)
    scenario = make_pushing(failure, ttlSecondsAfterFinished=0)
    status = await scenario.until(lambda status: status.phase is Phase.SUCCEEDED)
    while is_push_due(scenario.job, scenario.status):
        assert seconds_until_expiry(scenario.job, scenario.runtime.now) is None
        await scenario.round()
    assert result_pushed(scenario.status) == ("True", "Pushed")
    assert status.completion_time is not None
    later = status.completion_time + timedelta(hours=1)
    assert seconds_until_expiry(scenario.job, later) == 0.0


async def test_job_without_target_has_no_condition() -> None:
    status = await make_scenario().until_quiet()
    assert all(each.type is not ConditionType.RESULT_PUSHED for each in status.conditions)
