"""Pods that do not start: the job says why in the pod's own words, and does not wait for ever."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from cluster.images import Images
from cluster.jobs import a_small_job, condition, events_about, has_ended, status_when
from cluster.kubernetes import Kubernetes

MINUTE = 60
END_SECONDS = 180
BEFORE_CLUSTER = {"preflightSeconds": 50}
ON_CLUSTER = {"provisioningSeconds": 50}


@dataclass(frozen=True)
class Case:
    """A job whose pods cannot start, and what is said about it."""

    changes: Mapping[str, Any]
    condition: str
    """The one that waits for the pods."""
    words: tuple[str, ...]
    cause: str


def cases(image: str) -> dict[str, Case]:
    """Return the cases by name."""
    absent = f"{image}-absent"
    secret = {"name": "WANDB_API_KEY", "secretKeyRef": {"name": "absent", "key": "key"}}
    claim = {"name": "more", "claimName": "absent", "mountPath": "/mnt/more"}
    work = a_small_job("any", image)["spec"]["volumes"]
    no_gpu = {"device": "GPU", "gpuResourceName": "example.com/gpu", "gpuMemoryGib": 80}
    checking = {"spec.recovery.deadlines": BEFORE_CLUSTER}
    starting = {"spec.recovery.deadlines": ON_CLUSTER}
    early, late = "PreflightPassed", "ClusterReady"
    return {
        "image": Case(
            checking | {"spec.image": absent}, early, ("ImagePull", absent), "PreflightFailed"
        ),
        "claim": Case(
            checking | {"spec.volumes": [*work, claim]},
            early,
            ('persistentvolumeclaim "absent" not found',),
            "PreflightFailed",
        ),
        "secret": Case(
            checking | {"spec.env": [secret]},
            early,
            ("CreateContainerConfigError", 'secret "absent" not found'),
            "PreflightFailed",
        ),
        "gpu": Case(
            starting | {"spec.resources": {**no_gpu, "cpu": "100m", "memory": "2Gi"}},
            late,
            ("Unschedulable", "Insufficient example.com/gpu"),
            "Unschedulable",
        ),
        "memory": Case(
            starting | {"spec.resources": {"device": "CPU", "cpu": "100m", "memory": "900Gi"}},
            late,
            ("Unschedulable", "Insufficient memory"),
            "Unschedulable",
        ),
    }


def test_a_pod_that_cannot_start_is_told_within_a_minute_and_ends_the_job(
    cluster: Kubernetes, operator: Images, shared: str
) -> None:
    all_cases = cases(operator.trainer)
    jobs = [
        a_small_job(f"stuck-{name}", operator.trainer, case.changes)
        for name, case in all_cases.items()
    ]
    cluster.apply(*jobs, namespace=shared)

    for name, case in all_cases.items():
        waits_for_pods(cluster, shared, f"stuck-{name}", case)
    for name, case in all_cases.items():
        failed = the_end(cluster, shared, f"stuck-{name}")
        assert failed["reason"] == case.cause, failed
        assert [each for each in case.words if each not in failed["message"]] == [], failed


def waits_for_pods(cluster: Kubernetes, namespace: str, name: str, case: Case) -> None:
    """See condition and Event with the pod's words, at most a minute after the pod was made."""

    def tells(status: Mapping[str, Any]) -> bool:
        found = condition(status, case.condition)
        is_waiting = found.get("reason") == "PodsWaiting"
        return is_waiting and all(each in found["message"] for each in case.words)

    def has_cluster(status: Mapping[str, Any]) -> bool:
        return condition(status, "PreflightPassed").get("status") == "True"

    if case.condition == "ClusterReady":
        status_when(cluster, namespace, name, has_cluster, END_SECONDS)
    status_when(cluster, namespace, name, tells, MINUTE)
    told = [
        each["note"]
        for each in events_about(cluster, namespace, name)
        if (each["type"], each["reason"]) == ("Warning", "PodsWaiting")
    ]
    assert any(all(word in note for word in case.words) for note in told), told


def the_end(cluster: Kubernetes, namespace: str, name: str) -> dict[str, Any]:
    """Return the condition that says why the job failed."""
    status = status_when(cluster, namespace, name, has_ended, END_SECONDS)
    assert status["phase"] == "Failed"
    return condition(status, "Failed")


@pytest.fixture(autouse=True)
def _nothing_of_them_stays(cluster: Kubernetes, shared: str) -> Any:
    yield
    cluster.kubectl("delete", "rgj", "--all", "-n", shared)
