from datetime import UTC, datetime

import pytest

from raggrpo_operator.kube.pod_evidence import loss
from raggrpo_operator.kubernetes_runtime.watching.informer import _kept
from support.builders.pods import Manifest, a_pod, a_ray_cluster, container, ended

NOW = datetime(2026, 11, 21, 12, 2, tzinfo=UTC)


@pytest.mark.parametrize("reason", ["OOMKilled", "Error"])
def test_a_pod_in_the_cache_tells_as_much_of_its_loss_as_the_whole_pod(reason: str) -> None:
    pod = a_pod(container(ended(reason)), spec={"nodeName": "node-1"})

    assert loss(_kept(pod), NOW) == loss(pod, NOW)


def test_what_only_takes_memory_is_not_kept() -> None:
    record: Manifest = {"kind": "ConfigMap", "metadata": {"managedFields": []}, "data": {"a": "b"}}
    pod = a_pod()
    pod["spec"]["volumes"] = [{"name": "shm"}]

    assert _kept(record) == {"kind": "ConfigMap", "metadata": {}}
    assert "volumes" not in _kept(pod)["spec"]
    assert "volumes" in pod["spec"]


def test_a_ray_cluster_is_kept_whole() -> None:
    assert _kept(a_ray_cluster()) == a_ray_cluster()
