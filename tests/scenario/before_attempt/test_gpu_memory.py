"""GPU memory is checked before an attempt allocates a GPU."""

from typing import Any

import pytest

from raggrpo_api.status.conditions import ConditionType, Phase
from raggrpo_api.trainer.preflight import CheckId, CheckState, PreflightResult
from raggrpo_operator.core.lifecycle.actions import CreateCluster
from raggrpo_operator.core.lifecycle.observed import DeviceObserved
from support.builders.operator.jobs import KNOWN_7B
from support.fakes.fake_runtime import Scenario, make_scenario

H100 = DeviceObserved(81559, 9, "NVIDIA-H100-80GB-HBM3")
V100 = DeviceObserved(32768, 7, "Tesla-V100-SXM2-32GB")
LLAMA_70B = KNOWN_7B.model_copy(update={"parameters": 70_600_000_000, "layers": 80})
CLAIMED_DEVICE = {"gpu_memory_mib": 1_048_576, "gpu_compute_major": 9}
"""Device facts that an image reports although preflight pods have no GPU."""


async def make_gpu_scenario(
    facts: Any, device: DeviceObserved | None, **resources: Any
) -> Scenario:
    given = {"device": "GPU", "gpusPerNode": 8, "ranks": 1, **resources}
    result = PreflightResult(facts=facts.model_copy(update=CLAIMED_DEVICE))
    scenario = make_scenario({}, {"resources": given}, preflight_result=result)
    scenario.runtime.device = device
    await scenario.until_quiet()
    return scenario


def check_of(scenario: Scenario) -> tuple[CheckState, str]:
    checks = scenario.status.preflight.checks
    [check] = [each for each in checks if each.id is CheckId.GPU_MEMORY]
    return check.state, check.evidence


@pytest.mark.row("A12", "D11")
async def test_oversized_model_is_rejected_with_memory_terms() -> None:
    for device in (H100, None):
        scenario = await make_gpu_scenario(LLAMA_70B, device, gpusPerNode=1)

        assert scenario.status.phase is Phase.FAILED
        value, reason, message = scenario.condition(ConditionType.FAILED)
        assert (value, reason) == ("True", "PreflightFailed")
        assert "the training state does not fit (1052.0 GiB per GPU" in message
        assert check_of(scenario)[0] is CheckState.FAILED
        assert scenario.count(CreateCluster) == 0


async def test_fitting_model_starts_with_gpu_memory_from_labels() -> None:
    scenario = await make_gpu_scenario(KNOWN_7B, H100)

    assert check_of(scenario) == (CheckState.PASSED, "79.6 GiB per GPU, NVIDIA-H100-80GB-HBM3")
    assert scenario.status.preflight.facts.gpu_memory_mib == H100.memory_mib
    assert scenario.count(CreateCluster) == 1
    names = {term.name for term in scenario.status.sizing.terms if term.resource == "gpu"}
    assert {"weights", "gradients", "optimizer", "activations", "engineWeights", "kvCache"} <= names
    assert {"syncCopies", "fragmentation"} <= names


@pytest.mark.row("A12", "D11")
async def test_unknown_gpu_memory_causes_warning() -> None:
    scenario = await make_gpu_scenario(KNOWN_7B, None)

    state, evidence = check_of(scenario)
    assert state is CheckState.NOT_EVALUATED
    assert "the memory of the GPUs is unknown" in evidence
    assert (
        "the memory of the GPUs is unknown" in scenario.condition(ConditionType.PREFLIGHT_PASSED)[2]
    )
    assert scenario.count(CreateCluster) == 1


@pytest.mark.row("D13")
async def test_bf16_is_rejected_on_unsupported_devices() -> None:
    scenario = await make_gpu_scenario(KNOWN_7B, V100)
    assert (
        "Tesla-V100-SXM2-32GB has compute capability 7.x"
        in (scenario.condition(ConditionType.FAILED)[2])
    )
    assert scenario.count(CreateCluster) == 0
