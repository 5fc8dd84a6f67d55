"""What an upgrade of the operator changes for a job that runs: nothing, or it says what."""

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
from support.fakes.fake_runtime import CRASH, Story, a_story, head_is_lost


def reporting(**facts: str) -> PreflightResult:
    return PreflightResult(facts=KNOWN_TINY.model_copy(update=facts))


def digests(story: Story) -> list[str]:
    return [
        action.config.schema_digest
        for action in story.runtime.performed
        if isinstance(action, StartPreflight | SubmitAttempt)
    ]


async def test_a_job_stays_with_the_image_that_it_began_with() -> None:
    story = a_story(
        {(1, 25): CRASH},
        preflight_result=reporting(schema_digest=schema_digest()),
        default_image="trainer:1",
    )
    await story.until(lambda status: status.attempt == 1)

    story.runtime.default_image = "trainer:2"
    await story.until_quiet()

    assert story.status.phase is Phase.SUCCEEDED
    assert story.status.pinned.image == "trainer:1"
    [created] = [each for each in story.runtime.performed if isinstance(each, CreateCluster)]
    assert created.plan.image == "trainer:1"
    assert created.plan.sizing == story.status.sizing


async def test_an_image_with_an_unknown_schema_waits_for_a_person_and_then_goes_on() -> None:
    story = a_story(
        {(1, 25): CRASH},
        preflight_result=reporting(schema_digest=schema_digest()),
        default_image="trainer:1",
    )
    await story.until(lambda status: status.progress.step > 20)
    told = reporting(schema_digest="an operator of long ago").facts
    status = replace(story.status, preflight=replace(story.status.preflight, facts=told))
    story.job = story.job.model_copy(update={"status": status})

    await story.until(lambda status: status.attempts[0].cause is Cause.PROGRAM_ERROR)
    for _ in range(3):
        await story.round()

    value, reason, message = story.condition(ConditionType.PROGRESSING)
    assert (value, reason) == ("False", "UpgradeRequired")
    assert "trainer:1" in message
    assert "spec.image" in message
    assert story.submitted == [1]

    story.edit({"image": "trainer:2"})
    await story.until_quiet()
    assert story.status.phase is Phase.SUCCEEDED
    assert story.status.pinned.image == "trainer:2"
    assert set(digests(story)) == {schema_digest()}


OLDER = "the digest of an earlier release"


@pytest.fixture
def earlier_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let there have been a release that did not know `monitoring.historyWindow`."""
    fields = copy.deepcopy(trainer_schemas.known_schemas()[schema_digest()])
    del fields["monitoring"]["historyWindow"]
    known = {**trainer_schemas.known_schemas(), OLDER: fields}
    for module in (round_, trainer_config):
        monkeypatch.setattr(module, "known_schemas", lambda: known)


@pytest.mark.usefixtures("earlier_release")
async def test_an_image_of_an_earlier_release_is_given_what_it_knows() -> None:
    story = a_story(
        {(1, 25): CRASH},
        preflight_result=reporting(schema_digest=OLDER),
        default_image="trainer:1",
    )

    await story.until_quiet()

    assert story.status.phase is Phase.SUCCEEDED
    configs = [a.config for a in story.runtime.performed if isinstance(a, SubmitAttempt)]
    assert [each.schema_digest for each in configs] == [OLDER, OLDER]
    assert all("historyWindow" not in each.values()["monitoring"] for each in configs)


@pytest.mark.usefixtures("earlier_release")
async def test_what_an_image_of_an_earlier_release_does_not_know_waits_for_a_person() -> None:
    story = a_story(
        {(1, 25): CRASH},
        changes={"monitoring": {"historyWindow": 50}},
        preflight_result=reporting(schema_digest=OLDER),
        default_image="trainer:1",
    )

    for _ in range(30):
        await story.round()

    value, reason, message = story.condition(ConditionType.PROGRESSING)
    assert (value, reason) == ("False", "UpgradeRequired")
    assert "does not know spec.monitoring.historyWindow" in message


@pytest.mark.row("C13")
async def test_a_job_stays_with_the_ray_version_that_it_began_with() -> None:
    story = a_story(
        {(1, 25): CRASH},
        preflight_result=reporting(ray_version="2.60.0"),
        default_image="trainer:1",
    )
    await story.until(lambda status: status.progress.step > 20)
    assert story.status.pinned.ray_version == "2.60.0"
    [created] = [each for each in story.runtime.performed if isinstance(each, CreateCluster)]
    assert created.ray_version == "2.60.0"

    story.runtime.preflight_result = reporting(ray_version="2.61.0")
    story.edit({"image": "trainer:2"})
    await story.until_quiet()

    assert story.status.phase is Phase.FAILED
    _, reason, message = story.condition(ConditionType.PREFLIGHT_PASSED)
    assert reason == CheckId.RULES_ON_FACTS
    assert "the image has Ray 2.61.0, this job began with 2.60.0" in message
    assert (story.status.pinned.image, story.status.pinned.ray_version) == ("trainer:1", "2.60.0")
    assert story.submitted == [1]

    story.runtime.preflight_result = reporting(ray_version="2.60.0")
    story.edit({"image": "trainer:3"})
    story.retry("yes")
    await story.until_quiet()
    assert story.status.phase is Phase.SUCCEEDED
    assert story.status.pinned.ray_version == "2.60.0"


async def test_before_its_first_attempt_a_job_may_change_to_an_image_with_another_ray() -> None:
    managed = {"name": "kb", "managed": {"corpus": "/mnt/runs/corpus.jsonl"}}
    story = a_story(
        changes={"retrieval": {"mode": "Search", "endpoints": [managed]}},
        preflight_result=reporting(ray_version="2.60.0"),
        default_image="trainer:1",
    )
    await story.until(lambda status: status.pinned.ray_version == "2.60.0")
    assert story.status.attempt == 0
    story.runtime.preflight_result = reporting(ray_version="2.61.0")
    story.edit({"image": "trainer:2"})
    await story.until_quiet()

    assert story.status.phase is Phase.SUCCEEDED
    assert story.status.pinned.ray_version == "2.61.0"


# What is behind a name may change


ONE, TWO = (f"registry.example.com/trainer@sha256:{digit * 64}" for digit in "12")
LOADED_ONE, LOADED_TWO = (f"sha256:{digit * 64}" for digit in "12")
NAME = "registry.example.com/trainer:1"


def a_pinned_story(**world: Any) -> Story:
    told = {"ray_version": "2.60.0", "image_ids": (ONE,), "default_image": NAME} | world
    result = reporting(ray_version="2.60.0")
    return a_story({(1, 25): head_is_lost}, preflight_result=result, **told)


def images(story: Story) -> list[str]:
    return [each.plan.image for each in story.runtime.performed if isinstance(each, CreateCluster)]


@pytest.mark.row("C13")
async def test_the_next_cluster_is_given_the_digest_that_the_first_attempt_began_with() -> None:
    story = a_pinned_story()
    await story.until(lambda status: status.progress.step == 20)
    assert (story.status.pinned.image, story.status.pinned.image_id) == (NAME, ONE)

    story.runtime.image_ids = (ONE, TWO)  # a node knows the image by another digest, too
    await story.until_quiet()

    assert story.status.phase is Phase.SUCCEEDED
    assert images(story) == [NAME, f"{NAME}@sha256:{'1' * 64}"]


@pytest.mark.row("C13")
async def test_another_image_under_the_name_of_one_that_was_loaded_onto_nodes_is_refused() -> None:
    story = a_pinned_story(image_ids=(LOADED_ONE,))
    await story.until(lambda status: status.progress.step == 20)
    story.runtime.image_ids = (LOADED_TWO,)

    await story.until_quiet()

    value, reason, message = story.condition(ConditionType.FAILED)
    assert (value, reason) == ("True", Cause.IMAGE_CHANGED)
    assert f"{NAME} is {LOADED_TWO} on a node, this job began with {LOADED_ONE}" in message
    assert images(story) == [NAME, NAME]
    assert story.submitted == [1]

    story.retry("I know")
    await story.until_quiet()
    assert story.status.phase is Phase.SUCCEEDED
    assert story.status.pinned.image_id == LOADED_TWO


@pytest.mark.row("C13")
@pytest.mark.parametrize("told", [(ONE,), (LOADED_ONE,), ()])
async def test_another_ray_under_the_same_name_is_refused_on_resume(told: tuple[str, ...]) -> None:
    story = a_pinned_story(image_ids=told)
    await story.until(lambda status: status.progress.step == 20)
    story.runtime.ray_version = "2.61.0"

    await story.until_quiet()

    value, reason, message = story.condition(ConditionType.FAILED)
    assert (value, reason) == ("True", Cause.IMAGE_CHANGED)
    assert "has Ray 2.61.0 now, this job began with 2.60.0" in message
    assert "spec.image" in message
    assert story.submitted == [1]


async def test_an_attempt_waits_until_nodes_tell_what_has_to_be_compared() -> None:
    story = a_pinned_story(image_ids=(LOADED_ONE,))
    await story.until(lambda status: status.progress.step == 20)
    story.runtime.image_ids = ()
    await story.until(lambda status: status.attempt == 2)
    for _ in range(40):
        await story.round()
    assert story.submitted == [1]

    story.runtime.image_ids = (LOADED_ONE,)
    await story.until_quiet()
    assert story.status.phase is Phase.SUCCEEDED


async def test_an_image_that_nodes_tell_late_is_pinned_while_the_attempt_runs() -> None:
    story = a_pinned_story(image_ids=())
    await story.until(lambda status: status.progress.step == 5)
    assert story.status.pinned.image_id == ""

    story.runtime.image_ids = (ONE,)
    await story.until(lambda status: status.progress.step == 10)

    assert story.status.pinned.image_id == ONE


async def test_nodes_that_know_one_name_as_different_images_begin_nothing() -> None:
    story = a_pinned_story(image_ids=(LOADED_ONE, LOADED_TWO))

    await story.until_quiet()

    assert story.condition(ConditionType.FAILED)[1] == Cause.IMAGE_CHANGED
    assert story.submitted == []


async def test_a_user_changes_the_image_by_naming_another() -> None:
    story = a_pinned_story()
    await story.until(lambda status: status.progress.step == 20)

    other = "registry.example.com/trainer:2"
    story.edit({"image": other})
    story.runtime.image_ids = (TWO,)
    await story.until_quiet()

    assert story.status.phase is Phase.SUCCEEDED
    assert (story.status.pinned.image, story.status.pinned.image_id) == (other, TWO)
    assert images(story) == [NAME, other]
