"""A running job across an operator upgrade: unchanged, or waiting for the user with a reason."""

import copy
from dataclasses import replace
from typing import Any

import pytest

from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import ConditionType, Phase
from raggrpo_api.trainer import config as trainer_config
from raggrpo_api.trainer import schemas as trainer_schemas
from raggrpo_api.trainer.config import schema_digest
from raggrpo_api.trainer.preflight import CheckId, PreflightResult
from raggrpo_operator.core.lifecycle import round as round_
from raggrpo_operator.core.lifecycle.actions import CreateCluster, StartPreflight, SubmitAttempt
from support.builders.operator.jobs import KNOWN_TINY
from support.fakes.fake_runtime import CRASH, Scenario, head_is_lost, make_scenario


def result_with(**facts: str) -> PreflightResult:
    return PreflightResult(facts=KNOWN_TINY.model_copy(update=facts))


def digests(scenario: Scenario) -> list[str]:
    return [
        action.config.schema_digest
        for action in scenario.runtime.performed
        if isinstance(action, StartPreflight | SubmitAttempt)
    ]


async def test_job_keeps_image_of_first_attempt() -> None:
    scenario = make_scenario(
        {(1, 25): CRASH},
        preflight_result=result_with(schema_digest=schema_digest()),
        default_image="trainer:1",
    )
    await scenario.until(lambda status: status.attempt == 1)

    scenario.runtime.default_image = "trainer:2"
    await scenario.until_quiet()

    assert scenario.status.phase is Phase.SUCCEEDED
    assert scenario.status.pinned.image == "trainer:1"
    [created] = [each for each in scenario.runtime.performed if isinstance(each, CreateCluster)]
    assert created.plan.image == "trainer:1"
    assert created.plan.sizing == scenario.status.sizing


async def test_next_attempt_waits_for_user_when_image_schema_is_unknown() -> None:
    scenario = make_scenario(
        {(1, 25): CRASH},
        preflight_result=result_with(schema_digest=schema_digest()),
        default_image="trainer:1",
    )
    await scenario.until(lambda status: status.progress.step > 20)
    facts = result_with(schema_digest="an earlier operator").facts
    status = replace(scenario.status, preflight=replace(scenario.status.preflight, facts=facts))
    scenario.job = scenario.job.model_copy(update={"status": status})

    await scenario.until(lambda status: status.attempts[0].cause is Cause.PROGRAM_ERROR)
    for _ in range(3):
        await scenario.round()

    value, reason, message = scenario.condition(ConditionType.PROGRESSING)
    assert (value, reason) == ("False", "UpgradeRequired")
    assert "trainer:1" in message
    assert "spec.image" in message
    assert scenario.submitted == [1]

    scenario.edit({"image": "trainer:2"})
    await scenario.until_quiet()
    assert scenario.status.phase is Phase.SUCCEEDED
    assert scenario.status.pinned.image == "trainer:2"
    assert set(digests(scenario)) == {schema_digest()}


OLDER = "digest of an earlier release"


@pytest.fixture
def earlier_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add an earlier release without the field `monitoring.historyWindow`."""
    fields = copy.deepcopy(trainer_schemas.known_schemas()[schema_digest()])
    del fields["monitoring"]["historyWindow"]
    known = {**trainer_schemas.known_schemas(), OLDER: fields}
    for module in (round_, trainer_config):
        monkeypatch.setattr(module, "known_schemas", lambda: known)


@pytest.mark.usefixtures("earlier_release")
async def test_config_for_earlier_image_contains_only_fields_of_its_schema() -> None:
    scenario = make_scenario(
        {(1, 25): CRASH},
        preflight_result=result_with(schema_digest=OLDER),
        default_image="trainer:1",
    )

    await scenario.until_quiet()

    assert scenario.status.phase is Phase.SUCCEEDED
    configs = [a.config for a in scenario.runtime.performed if isinstance(a, SubmitAttempt)]
    assert [each.schema_digest for each in configs] == [OLDER, OLDER]
    assert all("historyWindow" not in each.values()["monitoring"] for each in configs)


@pytest.mark.usefixtures("earlier_release")
async def test_next_attempt_waits_for_user_when_image_does_not_support_field() -> None:
    scenario = make_scenario(
        {(1, 25): CRASH},
        changes={"monitoring": {"historyWindow": 50}},
        preflight_result=result_with(schema_digest=OLDER),
        default_image="trainer:1",
    )

    for _ in range(30):
        await scenario.round()

    value, reason, message = scenario.condition(ConditionType.PROGRESSING)
    assert (value, reason) == ("False", "UpgradeRequired")
    assert "does not support spec.monitoring.historyWindow" in message


@pytest.mark.row("C13")
async def test_changed_ray_version_is_rejected_after_first_attempt() -> None:
    scenario = make_scenario(
        {(1, 25): CRASH},
        preflight_result=result_with(ray_version="2.60.0"),
        default_image="trainer:1",
    )
    await scenario.until(lambda status: status.progress.step > 20)
    assert scenario.status.pinned.ray_version == "2.60.0"
    [created] = [each for each in scenario.runtime.performed if isinstance(each, CreateCluster)]
    assert created.ray_version == "2.60.0"

    scenario.runtime.preflight_result = result_with(ray_version="2.61.0")
    scenario.edit({"image": "trainer:2"})
    await scenario.until_quiet()

    assert scenario.status.phase is Phase.FAILED
    _, reason, message = scenario.condition(ConditionType.PREFLIGHT_PASSED)
    assert reason == CheckId.RULES_ON_FACTS
    assert "the image has Ray 2.61.0, but the job started with Ray 2.60.0" in message
    assert (scenario.status.pinned.image, scenario.status.pinned.ray_version) == (
        "trainer:1",
        "2.60.0",
    )
    assert scenario.submitted == [1]

    scenario.runtime.preflight_result = result_with(ray_version="2.60.0")
    scenario.edit({"image": "trainer:3"})
    scenario.retry("yes")
    await scenario.until_quiet()
    assert scenario.status.phase is Phase.SUCCEEDED
    assert scenario.status.pinned.ray_version == "2.60.0"


async def test_ray_version_may_change_before_first_attempt() -> None:
    managed = {"name": "kb", "managed": {"corpus": "/mnt/runs/corpus.jsonl"}}
    scenario = make_scenario(
        changes={"retrieval": {"mode": "Search", "endpoints": [managed]}},
        preflight_result=result_with(ray_version="2.60.0"),
        default_image="trainer:1",
    )
    await scenario.until(lambda status: status.pinned.ray_version == "2.60.0")
    assert scenario.status.attempt == 0
    scenario.runtime.preflight_result = result_with(ray_version="2.61.0")
    scenario.edit({"image": "trainer:2"})
    await scenario.until_quiet()

    assert scenario.status.phase is Phase.SUCCEEDED
    assert scenario.status.pinned.ray_version == "2.61.0"


# Images whose tag changes


DIGEST_ONE, DIGEST_TWO = (f"registry.example.com/trainer@sha256:{digit * 64}" for digit in "12")
LOADED_ONE, LOADED_TWO = (f"sha256:{digit * 64}" for digit in "12")
IMAGE_TAG = "registry.example.com/trainer:1"


def make_pinned_scenario(**environment: Any) -> Scenario:
    observed = {
        "ray_version": "2.60.0",
        "image_ids": (DIGEST_ONE,),
        "default_image": IMAGE_TAG,
    } | environment
    result = result_with(ray_version="2.60.0")
    return make_scenario({(1, 25): head_is_lost}, preflight_result=result, **observed)


def images(scenario: Scenario) -> list[str]:
    return [
        each.plan.image for each in scenario.runtime.performed if isinstance(each, CreateCluster)
    ]


@pytest.mark.row("C13")
async def test_next_cluster_uses_pinned_digest() -> None:
    scenario = make_pinned_scenario()
    await scenario.until(lambda status: status.progress.step == 20)
    assert (scenario.status.pinned.image, scenario.status.pinned.image_id) == (
        IMAGE_TAG,
        DIGEST_ONE,
    )

    scenario.runtime.image_ids = (
        DIGEST_ONE,
        DIGEST_TWO,
    )  # a node knows the image by another digest, too
    await scenario.until_quiet()

    assert scenario.status.phase is Phase.SUCCEEDED
    assert images(scenario) == [IMAGE_TAG, f"{IMAGE_TAG}@sha256:{'1' * 64}"]


@pytest.mark.row("C13")
async def test_changed_image_under_same_name_is_rejected() -> None:
    scenario = make_pinned_scenario(image_ids=(LOADED_ONE,))
    await scenario.until(lambda status: status.progress.step == 20)
    scenario.runtime.image_ids = (LOADED_TWO,)

    await scenario.until_quiet()

    value, reason, message = scenario.condition(ConditionType.FAILED)
    assert (value, reason) == ("True", Cause.IMAGE_CHANGED)
    assert (
        f"{IMAGE_TAG} is {LOADED_TWO} on a node, but the job started with {LOADED_ONE}" in message
    )
    assert images(scenario) == [IMAGE_TAG, IMAGE_TAG]
    assert scenario.submitted == [1]

    scenario.retry("I know")
    await scenario.until_quiet()
    assert scenario.status.phase is Phase.SUCCEEDED
    assert scenario.status.pinned.image_id == LOADED_TWO


@pytest.mark.row("C13")
@pytest.mark.parametrize("image_ids", [(DIGEST_ONE,), (LOADED_ONE,), ()])
async def test_changed_ray_version_under_same_tag_is_rejected_on_resume(
    image_ids: tuple[str, ...],
) -> None:
    scenario = make_pinned_scenario(image_ids=image_ids)
    await scenario.until(lambda status: status.progress.step == 20)
    scenario.runtime.ray_version = "2.61.0"

    await scenario.until_quiet()

    value, reason, message = scenario.condition(ConditionType.FAILED)
    assert (value, reason) == ("True", Cause.IMAGE_CHANGED)
    assert "now has Ray 2.61.0, but the job started with 2.60.0" in message
    assert "spec.image" in message
    assert scenario.submitted == [1]


async def test_attempt_waits_until_image_ids_are_observed() -> None:
    scenario = make_pinned_scenario(image_ids=(LOADED_ONE,))
    await scenario.until(lambda status: status.progress.step == 20)
    scenario.runtime.image_ids = ()
    await scenario.until(lambda status: status.attempt == 2)
    for _ in range(40):
        await scenario.round()
    assert scenario.submitted == [1]

    scenario.runtime.image_ids = (LOADED_ONE,)
    await scenario.until_quiet()
    assert scenario.status.phase is Phase.SUCCEEDED


async def test_image_id_observed_after_start_is_pinned() -> None:
    scenario = make_pinned_scenario(image_ids=())
    await scenario.until(lambda status: status.progress.step == 5)
    assert scenario.status.pinned.image_id == ""

    scenario.runtime.image_ids = (DIGEST_ONE,)
    await scenario.until(lambda status: status.progress.step == 10)

    assert scenario.status.pinned.image_id == DIGEST_ONE


async def test_attempt_does_not_start_when_nodes_have_different_images() -> None:
    scenario = make_pinned_scenario(image_ids=(LOADED_ONE, LOADED_TWO))

    await scenario.until_quiet()

    assert scenario.condition(ConditionType.FAILED)[1] == Cause.IMAGE_CHANGED
    assert scenario.submitted == []


async def test_new_image_name_replaces_pinned_image() -> None:
    scenario = make_pinned_scenario()
    await scenario.until(lambda status: status.progress.step == 20)

    other = "registry.example.com/trainer:2"
    scenario.edit({"image": other})
    scenario.runtime.image_ids = (DIGEST_TWO,)
    await scenario.until_quiet()

    assert scenario.status.phase is Phase.SUCCEEDED
    assert (scenario.status.pinned.image, scenario.status.pinned.image_id) == (other, DIGEST_TWO)
    assert images(scenario) == [IMAGE_TAG, other]
