"""Properties of the test cluster that the other e2e tests rely on."""

from typing import Any

from tools.kind import kind_cluster
from tools.kind.kubernetes import Kubernetes
from tools.kind.objects import make_claim, make_pod, with_claim

MIB = 1024**2


def make_probe(script: str, **container: Any) -> dict[str, Any]:
    return make_pod("probe", kind_cluster.BASE_IMAGE, ["bash", "-ec", script], **container)


def output_of(cluster: Kubernetes, namespace: str, pod: dict[str, Any]) -> str:
    """Run a pod until it completes and return its output."""
    cluster.apply(pod, namespace=namespace)
    cluster.kubectl(
        "wait", "pod/probe", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=90s",
        "-n", namespace,
    )  # fmt: skip
    return cluster.kubectl("logs", "probe", "-n", namespace).stdout


def test_kuberay_operator_is_ready(cluster: Kubernetes) -> None:
    deployment = cluster.read("deployment", "kuberay-operator")
    assert deployment["status"]["readyReplicas"] == 1
    assert "rayclusters.ray.io" in cluster.kubectl("get", "crd").stdout


def test_nonroot_pod_can_write_to_persistent_volume_claim(
    cluster: Kubernetes, namespace: str
) -> None:
    pod = with_claim(make_probe("echo kept > /data/file; cat /data/file"), "data", "/data")
    cluster.apply(make_claim("data"), namespace=namespace)
    assert output_of(cluster, namespace, pod) == "kept\n"


def test_shared_memory_volume_has_requested_size(cluster: Kubernetes, namespace: str) -> None:
    pod = make_probe(
        "df --output=size -B1 /dev/shm | tail -1",
        volumeMounts=[{"name": "shm", "mountPath": "/dev/shm"}],
        resources={"limits": {"cpu": "100m", "memory": "128Mi"}},
    )
    pod["spec"]["volumes"] = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}}
    ]

    assert int(output_of(cluster, namespace, pod)) == 64 * MIB


def test_pod_resolves_api_server_service(cluster: Kubernetes, namespace: str) -> None:
    name = "kubernetes.default.svc.cluster.local"
    assert name in output_of(cluster, namespace, make_probe(f"getent hosts {name}"))


def test_pod_is_scheduled_on_simulated_gpus(cluster: Kubernetes, namespace: str) -> None:
    kind_cluster.pretend_gpus(cluster, 4)
    fits = make_probe("echo ran", resources={"limits": {"nvidia.com/gpu": "4"}})
    too_many = make_probe("echo ran", resources={"limits": {"nvidia.com/gpu": "5"}})
    too_many["metadata"] = {"name": "too-many"}

    assert output_of(cluster, namespace, fits) == "ran\n"
    cluster.apply(too_many, namespace=namespace)
    cluster.kubectl(
        "wait", "pod/too-many", "--for=condition=PodScheduled=False", "--timeout=60s",
        "-n", namespace,
    )  # fmt: skip
    conditions = cluster.read("pod", "too-many", "-n", namespace)["status"]["conditions"]
    assert "Insufficient nvidia.com/gpu" in conditions[0]["message"]
