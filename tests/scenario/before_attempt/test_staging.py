"""Jobs that download their model and data before preflight."""

from datetime import timedelta

import pytest

from raggrpo_api.names import ANNOTATION_RETRY
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import ConditionType, Phase
from raggrpo_api.trainer.staging import StagingFailure, StagingReason, StagingResult
from raggrpo_operator.core.lifecycle.actions import StartPreflight, StartStaging, SubmitAttempt
from raggrpo_operator.core.state.conditions import get_condition
from support.fakes.fake_runtime import Scenario, make_scenario

MODEL, DATA = "hf://org/model@main", "s3://bucket/rows.jsonl"
SOURCES = {"model": {"source": MODEL}, "data.trainFiles": [], "data.sources": [DATA]}


def make_failure(reason: StagingReason) -> StagingResult:
    message = f"spec.model.source: {reason}; fix it"
    failure = StagingFailure(field="spec.model.source", reason=reason, message=message)
    return StagingResult(failures=[failure])


def performed(scenario: Scenario, kind: type) -> list[object]:
    return [each for each in scenario.runtime.performed if isinstance(each, kind)]


async def test_sources_are_staged_before_preflight_and_attempt_reads_staged_paths() -> None:
    scenario = make_scenario(changes=SOURCES)

    status = await scenario.until_quiet()

    assert status.phase is Phase.SUCCEEDED
    kinds = [type(each) for each in scenario.runtime.performed]
    assert kinds.index(StartStaging) < kinds.index(StartPreflight)
    [submitted] = performed(scenario, SubmitAttempt)
    assert isinstance(submitted, SubmitAttempt)
    assert submitted.config.model.path == "/mnt/runs/staged/0"
    assert submitted.config.data.train_files == ["/mnt/runs/staged/1"]
    assert [each.revision for each in status.staging.sources] == [
        f"commit-of-{MODEL}", f"commit-of-{DATA}"
    ]  # fmt: skip


async def test_phase_and_condition_show_progress_while_staging() -> None:
    scenario = make_scenario(changes=SOURCES)

    status = await scenario.until(
        lambda status: bool(get_condition(status, ConditionType.SOURCES_STAGED).message)
    )

    assert status.phase is Phase.STAGING
    condition = get_condition(status, ConditionType.SOURCES_STAGED)
    assert condition.message == "Staging 3.1 of 15.2 GB"


@pytest.mark.parametrize(
    ("variable", "origin"),
    [
        (
            {"secretKeyRef": {"name": "hub", "key": "token"}},
            "HF_TOKEN is from Secret hub, key token (spec.env[1])",
        ),
        ({"value": "", "notSecret": True}, "HF_TOKEN is from spec.env[1]"),
    ],
)
async def test_failed_login_names_variable_and_secret(
    variable: dict[str, object], origin: str
) -> None:
    env = [{"name": "HF_HOME", "value": "/mnt/runs/hub"}, {"name": "HF_TOKEN", **variable}]
    message = "spec.model.source: denied; pass a token in HF_TOKEN"
    failure = StagingFailure(
        field="spec.model.source", reason=StagingReason.ACCESS_DENIED, message=message
    )
    result = StagingResult(failures=[failure])
    scenario = make_scenario(changes=SOURCES | {"env": env}, stagings=[result])
    status = await scenario.until_quiet()
    condition = get_condition(status, ConditionType.SOURCES_STAGED)
    assert condition.message == f"{message}; {origin}"


@pytest.mark.parametrize(
    "reason",
    [StagingReason.UNKNOWN_REVISION, StagingReason.GATED_MODEL, StagingReason.DISK_FULL],
)
async def test_lasting_failure_ends_job_before_preflight(reason: StagingReason) -> None:
    scenario = make_scenario(changes=SOURCES, stagings=[make_failure(reason)])

    status = await scenario.until_quiet()

    failed = get_condition(status, ConditionType.FAILED)
    assert (failed.status, failed.reason) == ("True", Cause.STAGING_FAILED)
    assert "spec.model.source" in failed.message
    assert get_condition(status, ConditionType.SOURCES_STAGED).reason == reason
    assert not performed(scenario, StartPreflight)


async def test_unreachable_server_is_waited_for() -> None:
    failures = [make_failure(StagingReason.UNREACHABLE), make_failure(StagingReason.RATE_LIMITED)]
    scenario = make_scenario(changes=SOURCES, stagings=failures)

    await scenario.until(
        lambda status: get_condition(status, ConditionType.WAITING_FOR_ENDPOINT).status == "True"
    )
    status = await scenario.until_quiet()

    assert status.phase is Phase.SUCCEEDED
    assert len(performed(scenario, StartStaging)) == 3
    assert get_condition(status, ConditionType.WAITING_FOR_ENDPOINT).status == "False"


async def test_job_fails_when_server_is_unreachable_beyond_limit() -> None:
    failures = [make_failure(StagingReason.UNREACHABLE)] * 50
    changes = SOURCES | {"recovery.deadlines": {"outageSeconds": 120}}
    scenario = make_scenario(changes=changes, stagings=failures)
    start = scenario.runtime.now

    status = await scenario.until_quiet()

    failed = get_condition(status, ConditionType.FAILED)
    assert failed.reason == Cause.ENDPOINT_DOWN
    assert scenario.runtime.now - start < timedelta(minutes=6)


async def test_lost_staging_pod_is_replaced_a_limited_number_of_times() -> None:
    scenario = make_scenario(changes=SOURCES, stagings=["evicted"])
    assert (await scenario.until_quiet()).phase is Phase.SUCCEEDED

    scenario = make_scenario(changes=SOURCES, stagings=["evicted"] * 10)
    status = await scenario.until_quiet()
    failed = get_condition(status, ConditionType.FAILED)
    assert (failed.reason, failed.message) == (Cause.STAGING_FAILED, "evicted")


async def test_retry_stages_the_recorded_revision() -> None:
    scenario = make_scenario(changes=SOURCES, preflights=["lost"] * 4)
    status = await scenario.until_quiet()
    assert status.phase is Phase.FAILED
    metadata = scenario.job.metadata
    annotations = {**metadata.annotations, ANNOTATION_RETRY: "1"}
    scenario.job = scenario.job.model_copy(
        update={"metadata": metadata.model_copy(update={"annotations": annotations})}
    )

    status = await scenario.until_quiet()

    assert status.phase is Phase.SUCCEEDED
    first, second = performed(scenario, StartStaging)
    assert isinstance(first, StartStaging)
    assert isinstance(second, StartStaging)
    assert [each.revision for each in first.request.sources] == ["", ""]
    assert second.request.sources[0].revision == f"commit-of-{MODEL}"


async def test_job_with_paths_stages_nothing() -> None:
    scenario = make_scenario()
    status = await scenario.until_quiet()
    assert not performed(scenario, StartStaging)
    assert all(each.type is not ConditionType.SOURCES_STAGED for each in status.conditions)
