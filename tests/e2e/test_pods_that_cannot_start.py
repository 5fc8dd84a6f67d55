"""Pods that cannot start: the job reports the pod's reason and fails at its deadline."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest

from tools.kind.images import Images
from tools.kind.jobs import condition, events_about, has_ended, make_small_job, wait_for_status
from tools.kind.kubernetes import Kubernetes
from tools.kind.training_job import MOUNT

pytestmark = pytest.mark.timeout(1200)  # the first test waits for cluster and images

MINUTE = timedelta(minutes=1)
END_SECONDS = 240
EARLY = "Waiting for the preflight pod"
LATE = "Waiting for the Ray cluster's pods"


@dataclass(frozen=True)
class Case:
    """A job whose pods cannot start, and the words in its messages."""

    waits: str
    reason: str
    words: tuple[str, ...]
    changes: Mapping[str, Any]

    @property
    def cause(self) -> str:
        """The cause when the deadline is exceeded."""
        return "PreflightFailed" if self.waits == EARLY else "Unschedulable"


_SECRET = {"name": "WANDB_API_KEY", "secretKeyRef": {"name": "absent", "key": "key"}}
_CLAIM = {"name": "work", "claimName": "absent", "mountPath": MOUNT}
_GPUS = {"device": "GPU", "gpuResourceName": "example.com/gpu", "gpuMemoryGib": 80}
_SMALL = {"cpu": "100m", "memory": "3Gi", "shmSize": "320Mi"}

CASES = {
    "image": Case(
        EARLY,
        "ImagePullFailed",
        ("ImagePull", "raggrpo/absent:1"),
        {"spec.image": "raggrpo/absent:1"},
    ),
    "claim": Case(
        EARLY,
        "Unschedulable",
        ('persistentvolumeclaim "absent" not found',),
        {"spec.volumes": [_CLAIM]},
    ),
    "secret": Case(
        EARLY,
        "ContainerStartFailed",
        ("CreateContainerConfigError", 'secret "absent" not found'),
        {"spec.env": [_SECRET]},
    ),
    "gpu": Case(
        LATE,
        "Unschedulable",
        ("Insufficient example.com/gpu",),
        {"spec.resources": _GPUS | _SMALL},
    ),
    "memory": Case(
        LATE,
        "Unschedulable",
        ("Insufficient memory",),
        {"spec.resources": {"device": "CPU", "cpu": "100m", "memory": "900Gi"}},
    ),
}


@pytest.fixture(scope="module")
def applied(cluster: Kubernetes, operator: Images, shared: str) -> Iterator[str]:
    """The namespace of all these jobs, which wait in parallel."""
    jobs = []
    for name, case in CASES.items():
        seconds = "preflightSeconds" if case.waits == EARLY else "provisioningSeconds"
        deadline = {"spec.recovery.deadlines": {seconds: 50}}
        jobs.append(make_small_job(f"stuck-{name}", operator.trainer, deadline | case.changes))
    cluster.apply(*jobs, namespace=shared)
    yield shared
    cluster.kubectl("delete", "rgj", "-n", shared, *[f"stuck-{name}" for name in CASES])


@pytest.mark.row("B18")
@pytest.mark.parametrize("name", CASES)
def test_pod_start_failure_is_reported_within_a_minute_and_fails_job(
    name: str, cluster: Kubernetes, applied: str
) -> None:
    case = CASES[name]

    status = wait_for_status(cluster, applied, f"stuck-{name}", has_ended, END_SECONDS)

    failed = condition(status, "Failed")
    assert (status["phase"], failed["reason"]) == ("Failed", case.cause)
    assert [each for each in case.words if each not in failed["message"]] == []
    waits = [
        each
        for each in events_about(cluster, applied, f"stuck-{name}")
        if each["note"].startswith(case.waits)
    ]
    matches = [each for each in waits if all(word in each["note"] for word in case.words)]
    assert matches, waits
    assert (matches[0]["type"], matches[0]["reason"]) == ("Warning", case.reason)
    assert time_of(matches[0]) - time_of(waits[0]) < MINUTE


def time_of(event: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(event["eventTime"])
