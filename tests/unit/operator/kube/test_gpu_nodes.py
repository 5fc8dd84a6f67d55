from typing import Any

import pytest

from raggrpo_api.spec.resources import ResourcesSpec, SchedulingSpec
from raggrpo_operator.core.lifecycle.observed import DeviceObserved
from raggrpo_operator.kube.gpu_nodes import smallest_gpu

H100 = {
    "nvidia.com/gpu.memory": "81559",
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    "nvidia.com/gpu.compute.major": "9",
}


def make_node(labels: dict[str, str], gpus: str = "8") -> dict[str, Any]:
    return {
        "metadata": {"name": "n", "labels": labels},
        "status": {"allocatable": {"nvidia.com/gpu": gpus}},
    }


def observe_gpu(
    *nodes: dict[str, Any], gpus: int = 1, selector: dict[str, str] | None = None
) -> DeviceObserved | None:
    resources = ResourcesSpec(gpus_per_node=gpus)
    return smallest_gpu(nodes, resources, SchedulingSpec(node_selector=selector or {}))


@pytest.mark.row("D11")
def test_smallest_gpu_of_eligible_nodes_is_returned() -> None:
    small = make_node(H100 | {"nvidia.com/gpu.memory": "40960", "pool": "small"})
    large = make_node(H100 | {"pool": "large"})
    assert observe_gpu(small, large) == DeviceObserved(40960, 9, "NVIDIA-H100-80GB-HBM3")
    assert observe_gpu(small, large, selector={"pool": "large"}) == DeviceObserved(
        81559, 9, "NVIDIA-H100-80GB-HBM3"
    )


def test_nodes_without_enough_gpus_are_ignored() -> None:
    assert observe_gpu(make_node(H100, gpus="4"), gpus=8) is None
    assert observe_gpu({"metadata": {"labels": H100}}) is None


@pytest.mark.parametrize(
    ("product", "gib", "major"),
    [
        ("Tesla-V100-SXM2-32GB", 29, 7),
        ("Tesla-T4", 14, 7),
        ("NVIDIA-A100-SXM4-40GB", 37, 8),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", 4, 8),
        ("NVIDIA-H100-PCIe", 74, 9),
        ("NVIDIA-L4", 22, 8),
    ],
)
def test_product_label_determines_gpu_memory_and_compute_capability(
    product: str, gib: int, major: int
) -> None:
    device = observe_gpu(make_node({"nvidia.com/gpu.product": product}))
    assert device is not None
    assert (device.memory_mib // 1024, device.compute_major) == (gib, major)


SLICE = "nvidia.com/mig-1g.10gb"
WHOLE = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.memory": "81920"}


@pytest.mark.row("D11")
@pytest.mark.parametrize(
    ("resource", "labels", "mib"),
    [
        (SLICE, WHOLE | {f"{SLICE}.memory": "9728"}, 9728),
        (SLICE, WHOLE, 9536),  # 10 GB, by the resource's name
        (SLICE, WHOLE | {f"{SLICE}.memory": "9728", "nvidia.com/gpu.replicas": "4"}, 9728),
        ("nvidia.com/gpu", WHOLE, 81920),
        ("nvidia.com/gpu", WHOLE | {"nvidia.com/gpu.replicas": "4"}, 20480),
        ("nvidia.com/gpu.shared", WHOLE | {"nvidia.com/gpu.replicas": "2"}, 40960),
    ],
)
def test_gpu_memory_is_divided_by_mig_slices_and_replicas(
    resource: str, labels: dict[str, str], mib: int
) -> None:
    node = {"metadata": {"labels": labels}, "status": {"allocatable": {resource: "8"}}}
    resources = ResourcesSpec.model_validate({"gpuResourceName": resource})
    device = smallest_gpu([node], resources, SchedulingSpec())
    assert device is not None
    assert device.memory_mib == mib


@pytest.mark.parametrize("memory", ["", "-5", "0", "many", "1e9"])
def test_invalid_gpu_memory_label_is_ignored(memory: str) -> None:
    assert observe_gpu(make_node({"nvidia.com/gpu.memory": memory})) is None
