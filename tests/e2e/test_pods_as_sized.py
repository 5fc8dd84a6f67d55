"""Pods of a GPU job request the resources in its status; GPUs are simulated by the node."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from raggrpo_operator.core.spec.quantity import parse_quantity
from tools.kind import kind_cluster
from tools.kind.images import Images
from tools.kind.jobs import make_small_job, wait_for_ready_pods, wait_for_status
from tools.kind.kubernetes import Kubernetes

pytestmark = pytest.mark.timeout(1200)  # the first test waits for cluster and images

GPU = "nvidia.com/gpu"
GPUS = 2
SECONDS = 180
RESOURCES = {
    "device": "GPU",
    "gpusPerNode": GPUS,
    "gpuMemoryGib": 80,
    "cpu": "100m",
    "memory": "3Gi",
    "shmSize": "320Mi",
}
ON_CLUSTER = ("head", "trainer")
OF_JOB = "raggrpo.io/job-name=gpu-shaped"

Pods = Mapping[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def sizing(cluster: Kubernetes, operator: Images, shared: str) -> Iterator[dict[str, Any]]:
    """Sizing by role of a job whose pods run; its driver fails, because there are no real GPUs."""
    kind_cluster.pretend_gpus(cluster, GPUS)
    job = make_small_job("gpu-shaped", operator.trainer, {"spec.resources": RESOURCES})
    cluster.apply(job, namespace=shared)

    def has_cluster(status: Mapping[str, Any]) -> bool:
        return bool(status.get("cluster", {}).get("name"))

    status = wait_for_status(cluster, shared, "gpu-shaped", has_cluster, SECONDS)
    yield {each["role"]: each for each in status["sizing"]["pods"]}
    cluster.kubectl("delete", "rgj", "gpu-shaped", "-n", shared)


@pytest.fixture(scope="module")
def pods(cluster: Kubernetes, sizing: dict[str, Any], shared: str) -> Pods:
    """The running pods of the Ray cluster by role."""
    pods = {}
    for role in ON_CLUSTER:
        labels, number = f"{OF_JOB},raggrpo.io/role={role}", sizing[role].get("replicas", 1)
        pods[role] = wait_for_ready_pods(cluster, shared, labels, number, SECONDS)
    return pods


@pytest.mark.row("B5")
@pytest.mark.parametrize("role", ON_CLUSTER)
def test_pods_request_resources_shown_in_status(
    role: str, pods: Pods, sizing: dict[str, Any]
) -> None:
    sized = sizing[role]
    gpus = {GPU: float(sized["gpus"])} if sized.get("gpus") else {}
    expected = {
        "requests": {"cpu": parse_quantity(sized["cpu"]), "memory": parse_quantity(sized["memory"])}
        | gpus,
        "limits": {"memory": parse_quantity(sized["memory"])} | gpus,
    }

    [container] = pods[role][0]["spec"]["containers"]
    requested = {
        kind: {name: parse_quantity(amount) for name, amount in amounts.items()}
        for kind, amounts in container["resources"].items()
    }

    assert requested == expected


def test_gpus_are_allocated_to_trainer_pod(pods: Pods, sizing: dict[str, Any]) -> None:
    assert sizing["trainer"]["gpus"] == GPUS
    [trainer] = pods["trainer"]
    assert trainer["spec"]["containers"][0]["resources"]["limits"][GPU] == str(GPUS)
    assert trainer["status"]["containerStatuses"][0]["state"].get("running")


@pytest.mark.row("A5")
@pytest.mark.parametrize("role", ON_CLUSTER)
def test_shared_memory_volume_has_derived_size(
    role: str, cluster: Kubernetes, pods: Pods, sizing: dict[str, Any]
) -> None:
    metadata = pods[role][0]["metadata"]
    output = cluster.kubectl(
        "exec", metadata["name"], "-n", metadata["namespace"], "--",
        "df", "--output=size", "-B1", "/dev/shm",
    ).stdout  # fmt: skip

    assert int(output.split()[-1]) == parse_quantity(sizing[role]["shm"])
    assert role != "trainer" or sizing[role]["shm"] == RESOURCES["shmSize"]
