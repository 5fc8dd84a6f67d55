"""No attempt takes a GPU before its memory was judged."""

from typing import Any

import pytest

from raggrpo_api.status.conditions import ConditionType, Phase
from raggrpo_api.trainer.preflight import CheckId, CheckState, PreflightResult
from raggrpo_operator.core.lifecycle.actions import CreateCluster
from raggrpo_operator.core.lifecycle.observed import DeviceObserved
from support.builders.operator.jobs import KNOWN_7B
from support.fakes.fake_runtime import Story, a_story

H100 = DeviceObserved(81559, 9, "NVIDIA-H100-80GB-HBM3")
V100 = DeviceObserved(32768, 7, "Tesla-V100-SXM2-32GB")
LLAMA_70B = KNOWN_7B.model_copy(update={"parameters": 70_600_000_000, "layers": 80})
BOASTFUL = {"gpu_memory_mib": 1_048_576, "gpu_compute_major": 9}
"""What an image may say of a device that it has not seen."""


async def the_story(facts: Any, device: DeviceObserved | None, **resources: Any) -> Story:
    given = {"device": "GPU", "gpusPerNode": 8, "ranks": 1, **resources}
    told = PreflightResult(facts=facts.model_copy(update=BOASTFUL))
    story = a_story({}, {"resources": given}, preflight_result=told)
    story.runtime.device = device
    await story.until_quiet()
    return story


def check_of(story: Story) -> tuple[CheckState, str]:
    checks = story.status.preflight.checks
    [found] = [each for each in checks if each.id is CheckId.GPU_MEMORY]
    return found.state, found.evidence


@pytest.mark.row("A12", "D11")
async def test_70b_on_one_gpu_is_refused_before_any_cluster_with_its_terms() -> None:
    for device in (H100, None):
        story = await the_story(LLAMA_70B, device, gpusPerNode=1)

        assert story.status.phase is Phase.FAILED
        value, reason, message = story.condition(ConditionType.FAILED)
        assert (value, reason) == ("True", "PreflightFailed")
        assert "training needs 1052.0 GiB per GPU" in message
        assert check_of(story)[0] is CheckState.FAILED
        assert story.count(CreateCluster) == 0


async def test_a_model_that_fits_by_its_nodes_labels_is_judged_and_begun() -> None:
    story = await the_story(KNOWN_7B, H100)

    assert check_of(story) == (CheckState.PASSED, "79.6 GiB per GPU, NVIDIA-H100-80GB-HBM3")
    assert story.status.preflight.facts.gpu_memory_mib == H100.memory_mib
    assert story.count(CreateCluster) == 1
    names = {term.name for term in story.status.sizing.terms if term.resource == "gpu"}
    assert {"weights", "gradients", "optimizer", "activations", "engineWeights", "kvCache"} <= names
    assert {"syncCopies", "fragmentation"} <= names


@pytest.mark.row("A12", "D11")
async def test_an_unknown_gpu_is_a_warning_that_is_seen_and_measured_later() -> None:
    story = await the_story(KNOWN_7B, None)

    state, evidence = check_of(story)
    assert state is CheckState.NOT_EVALUATED
    assert "the GPUs' memory is unknown" in evidence
    assert "memory is unknown" in story.condition(ConditionType.PREFLIGHT_PASSED)[2]
    assert story.count(CreateCluster) == 1


@pytest.mark.row("D13")
async def test_bf16_is_refused_on_devices_without_it() -> None:
    story = await the_story(KNOWN_7B, V100)
    assert (
        "Tesla-V100-SXM2-32GB has compute capability 7.x"
        in (story.condition(ConditionType.FAILED)[2])
    )
    assert story.count(CreateCluster) == 0
