import json
from datetime import UTC, datetime

import pytest

from raggrpo_api import names
from raggrpo_operator.core.lifecycle.observed import ClusterObserved
from raggrpo_operator.kube.pod_evidence import loss
from raggrpo_operator.kubernetes_runtime.rounds.observe import head_is_ready, observed_cluster
from raggrpo_operator.kubernetes_runtime.watching.kept import TOO_LARGE, kept_child, kept_job
from support.builders.pods import Manifest, a_pod, a_ray_cluster, container, ended

NOW = datetime(2026, 11, 21, 12, 2, tzinfo=UTC)


@pytest.mark.parametrize("reason", ["OOMKilled", "Error"])
def test_a_pod_in_the_cache_tells_as_much_of_its_loss_as_the_whole_pod(reason: str) -> None:
    pod = a_pod(container(ended(reason)), spec={"nodeName": "node-1"})

    assert loss(kept_child(pod), NOW) == loss(pod, NOW)


@pytest.mark.parametrize("kind", ["Pod", "RayCluster", "ConfigMap", "Deployment", "RagGrpoJob"])
def test_what_only_takes_memory_is_not_kept(kind: str) -> None:
    huge = "x" * 100_000
    body: Manifest = {
        "kind": kind,
        "metadata": {
            "name": "small",
            "labels": {names.LABEL_JOB: "small", "theirs": huge},
            "annotations": {"theirs": huge, names.ANNOTATION_RETRY: huge},
            "managedFields": [huge],
            "ownerReferences": [{"uid": "1", "controller": True}, {"uid": huge}],
        },
        "data": {"config.json": huge},
    }
    if kind != "RagGrpoJob":
        template = {"containers": [{"env": huge, "resources": {}}], "volumes": [huge]}
        body["spec"] = template | {"workerGroupSpecs": [{"replicas": 2, "template": huge}]}
        body["status"] = {"theirs": huge}

    kept = (kept_job if kind == "RagGrpoJob" else kept_child)(body)

    assert len(json.dumps(kept)) < 1000
    assert kept["metadata"]["labels"] == {names.LABEL_JOB: "small"}


def test_a_ray_cluster_in_the_cache_is_observed_like_the_whole_one() -> None:
    def seen(ray_cluster: Manifest) -> ClusterObserved:
        return observed_cluster(
            1, ray_cluster, losses=[], problem=None, problem_is_final=False, is_reachable=True
        )

    whole = a_ray_cluster()

    assert seen(kept_child(whole)) == seen(whole)
    assert head_is_ready(kept_child(whole)) == head_is_ready(whole)


def test_of_a_spec_far_too_large_only_its_size_is_kept() -> None:
    body: Manifest = {"kind": "RagGrpoJob", "metadata": {"name": "a"}, "spec": {"x": "y" * 300_000}}

    kept = kept_job(body)

    assert len(json.dumps(kept)) < 1000
    assert kept[TOO_LARGE] > 300_000
