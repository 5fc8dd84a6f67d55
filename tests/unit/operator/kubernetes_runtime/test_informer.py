import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from raggrpo_api import names
from raggrpo_operator.core.lifecycle.observed import ClusterObserved
from raggrpo_operator.kube.cluster_objects import ClusterObjects, JobKey
from raggrpo_operator.kube.pod_evidence import loss
from raggrpo_operator.kubernetes_runtime.rounds.observe import is_head_ready, observed_cluster
from raggrpo_operator.kubernetes_runtime.watching.evidence_store import EvidenceStore
from raggrpo_operator.kubernetes_runtime.watching.informer import listener
from raggrpo_operator.kubernetes_runtime.watching.job_store import JobStore
from raggrpo_operator.kubernetes_runtime.watching.trimming import TOO_LARGE, trim_child, trim_job
from support.builders.operator.pods import Manifest, container, ended, make_pod, make_ray_cluster

NOW = datetime(2026, 11, 21, 12, 2, tzinfo=UTC)


@pytest.mark.parametrize("reason", ["OOMKilled", "Error"])
def test_trimming_pod_does_not_change_loss_evidence(reason: str) -> None:
    pod = make_pod(container(ended(reason)), spec={"nodeName": "node-1"})

    assert loss(trim_child(pod), NOW) == loss(pod, NOW)


@pytest.mark.row("E10")
@pytest.mark.parametrize(
    "kind", ["Pod", "RayCluster", "ConfigMap", "Deployment", "Service", "RagGrpoJob"]
)
def test_trimming_removes_unused_fields(kind: str) -> None:
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

    trimmed = (trim_job if kind == "RagGrpoJob" else trim_child)(body)

    assert len(json.dumps(trimmed)) < 1000
    assert trimmed["metadata"]["labels"] == {names.LABEL_JOB: "small"}


def test_trimming_ray_cluster_does_not_change_observation() -> None:
    def observe(ray_cluster: Manifest) -> ClusterObserved:
        return observed_cluster(
            1,
            ray_cluster,
            losses=[],
            problem=None,
            problem_is_final=False,
            is_reachable=True,
            all_pods_live=True,
        )

    whole = make_ray_cluster()

    assert observe(trim_child(whole)) == observe(whole)
    assert is_head_ready(trim_child(whole)) == is_head_ready(whole)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"x": "y" * 300_000}, "300009 bytes"),
        ({"x": nested(9_000)}, "nested more than 64 levels deep"),
        ({"x": [[{"": 0}] * 1_000] * 13}, "more than 2000 values"),
    ],
)
def test_oversized_spec_is_replaced_by_explanation(spec: Manifest, why: str) -> None:
    trimmed = trim_job({"kind": "RagGrpoJob", "metadata": {"name": "a"}, "spec": spec})

    assert len(json.dumps(trimmed)) < 1000
    assert why in trimmed[TOO_LARGE]
    assert trim_job(trimmed) == trimmed


def test_trimmed_pod_keeps_memory_limit_of_first_container() -> None:
    resources = {"limits": {"memory": "1Gi", "theirs.example/x": "9" * 1000}}
    body: Manifest = {
        "kind": "Pod",
        "metadata": {"name": "a"},
        "spec": {"containers": [{"name": "a", "resources": resources}] * 8_000},
        "status": {"containerStatuses": [{"name": "a"}] * 8_000},
    }

    trimmed = trim_child(body)

    assert trimmed["spec"]["containers"] == [{"resources": {"limits": {"memory": "1Gi"}}}]
    assert len(json.dumps(trimmed)) < 1000


@dataclass
class Listening:
    """A listener with its evidence, store and requeued jobs."""

    evidence: EvidenceStore = field(default_factory=lambda: EvidenceStore(timedelta(0)))
    changed: list[JobKey] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = JobStore(ClusterObjects())
        self.on_event = listener(self.evidence, self.store, self.changed.append, lambda: NOW)

    def losses(self, pod: Manifest) -> int:
        key = JobKey(pod["metadata"]["namespace"], pod["metadata"]["labels"][names.LABEL_JOB])
        uid = pod["metadata"]["ownerReferences"][0]["uid"]
        return len(self.evidence.losses(key, uid, datetime.min.replace(tzinfo=UTC)))


@pytest.mark.parametrize(
    ("event_type", "losses"), [("DELETED", 1), ("VANISHED", 0), ("LISTED", 0), ("MODIFIED", 0)]
)
def test_pod_removed_from_list_is_not_loss_evidence(event_type: str, losses: int) -> None:
    listening, pod = Listening(), trim_child(make_pod(kind="head"))

    listening.on_event(event_type, pod)

    assert listening.losses(pod) == losses
    assert len(listening.changed) == 1


@pytest.mark.parametrize(
    ("event_type", "version", "is_requeued"),
    [
        ("MODIFIED", "7", False),
        ("MODIFIED", "8", True),
        ("DELETED", "7", True),
        ("VANISHED", "7", True),
    ],
)
def test_own_status_writes_do_not_requeue_job(
    event_type: str, version: str, is_requeued: bool
) -> None:
    listening, key = Listening(), JobKey("default", "small")
    metadata = {"name": key.name, "namespace": key.namespace, "uid": "1", "generation": 1}
    job = {"kind": names.KIND, "metadata": metadata | {"resourceVersion": "7"}}
    listening.store.put(key, job)

    listening.on_event(event_type, job | {"metadata": metadata | {"resourceVersion": version}})

    assert listening.changed == ([key] if is_requeued else [])
