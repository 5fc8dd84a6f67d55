"""Jobs of which something is wrong or special, and how a test waits for what they say."""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from support.builders.operator.jobs import changed
from tools.kind.kubernetes import Kubernetes
from tools.kind.training_job import MOUNT, make_job

POLL_SECONDS = 0.5
STEPS = 8
T = TypeVar("T")


def make_small_job(name: str, image: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job on the seeded volume; keys of `changes` are places such as `spec.rollout.n`."""
    steps = changes.get("spec.training.totalSteps", STEPS)
    own = {"spec.checkpoint.path": f"{MOUNT}/{name}", "spec.resources.cpu": "100m"}
    return changed(make_job(name, image, steps), own | dict(changes))


def condition(status: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return a condition, `Unknown` when it is not there."""
    found = (each for each in status.get("conditions", []) if each["type"] == kind)
    return next(found, {"type": kind, "status": "Unknown", "reason": "", "message": ""})


def status_when(
    cluster: Kubernetes,
    namespace: str,
    name: str,
    is_so: Callable[[Mapping[str, Any]], bool],
    seconds: float,
) -> dict[str, Any]:
    """Wait until a job's status is so and return it.

    Raises:
        AssertionError: It was not so in time; the message is the status.
    """

    def read() -> dict[str, Any]:
        status: dict[str, Any] = cluster.read("rgj", name, "-n", namespace).get("status", {})
        return status

    return _when(read, is_so, f"job {name}", seconds)


def pods_when_ready(
    cluster: Kubernetes, namespace: str, labels: str, number: int, seconds: float
) -> list[dict[str, Any]]:
    """Wait until so many pods with these labels are ready and return them.

    Raises:
        AssertionError: They were not ready in time; the message is their statuses.
    """

    def read() -> list[dict[str, Any]]:
        pods: list[dict[str, Any]] = cluster.read("pods", "-n", namespace, "-l", labels)["items"]
        return pods

    def are_ready(pods: list[dict[str, Any]]) -> bool:
        ready = [each for each in pods if condition(each["status"], "Ready")["status"] == "True"]
        return len(ready) == len(pods) == number

    return _when(read, are_ready, f"pods {labels}", seconds)


def _when(read: Callable[[], T], is_so: Callable[[T], bool], what: str, seconds: float) -> T:
    deadline = time.monotonic() + seconds
    while not is_so(found := read()):
        assert time.monotonic() < deadline, f"{what} after {seconds:.0f} s: {json.dumps(found)}"
        time.sleep(POLL_SECONDS)
    return found


def has_ended(status: Mapping[str, Any]) -> bool:
    return status.get("phase") in ("Succeeded", "Failed", "Invalid")


def events_about(cluster: Kubernetes, namespace: str, name: str) -> list[dict[str, Any]]:
    """Return what the operator told about a job, oldest first."""
    found = cluster.read("events.events.k8s.io", "-n", namespace)["items"]
    about = [
        each
        for each in found
        if each["regarding"]["kind"] == "RagGrpoJob" and each["regarding"]["name"] == name
    ]
    return sorted(about, key=lambda each: str(each["eventTime"]))
