"""Jobs for tests of a cluster, and functions that wait for their status."""

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
    """Return a job on the seeded volume; keys of `changes` are paths such as `spec.rollout.n`."""
    steps = changes.get("spec.training.totalSteps", STEPS)
    own = {"spec.checkpoint.path": f"{MOUNT}/{name}", "spec.resources.cpu": "100m"}
    return changed(make_job(name, image, steps), own | dict(changes))


def condition(status: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return a condition; its status is `Unknown` if it is missing."""
    unknown = {"type": kind, "status": "Unknown", "reason": "", "message": ""}
    matches = (each for each in status.get("conditions", []) if each["type"] == kind)
    return unknown | next(matches, {})


def wait_for_status(
    cluster: Kubernetes,
    namespace: str,
    name: str,
    predicate: Callable[[Mapping[str, Any]], bool],
    seconds: float,
) -> dict[str, Any]:
    """Wait until `predicate` is true for a job's status and return the status.

    Raises:
        AssertionError: It was not true in time; the message has the status.
    """

    def read() -> dict[str, Any]:
        status: dict[str, Any] = cluster.read("rgj", name, "-n", namespace).get("status", {})
        return status

    return _wait_for(read, predicate, f"job {name}", seconds)


def wait_for_ready_pods(
    cluster: Kubernetes, namespace: str, labels: str, number: int, seconds: float
) -> list[dict[str, Any]]:
    """Wait until `number` pods with these labels are ready and return them.

    Raises:
        AssertionError: They were not ready in time; the message has their statuses.
    """

    def read() -> list[dict[str, Any]]:
        pods: list[dict[str, Any]] = cluster.read("pods", "-n", namespace, "-l", labels)["items"]
        return pods

    def are_ready(pods: list[dict[str, Any]]) -> bool:
        ready = [each for each in pods if condition(each["status"], "Ready")["status"] == "True"]
        return len(ready) == len(pods) == number

    return _wait_for(read, are_ready, f"pods {labels}", seconds)


def _wait_for(
    read: Callable[[], T], predicate: Callable[[T], bool], what: str, seconds: float
) -> T:
    deadline = time.monotonic() + seconds
    while not predicate(value := read()):
        assert time.monotonic() < deadline, f"{what} after {seconds:.0f} s: {json.dumps(value)}"
        time.sleep(POLL_SECONDS)
    return value


def has_ended(status: Mapping[str, Any]) -> bool:
    return status.get("phase") in ("Succeeded", "Failed", "Invalid")


def events_about(cluster: Kubernetes, namespace: str, name: str) -> list[dict[str, Any]]:
    """Return the Events of a job, oldest first."""
    events = cluster.read("events.events.k8s.io", "-n", namespace)["items"]
    about = [
        each
        for each in events
        if each["regarding"]["kind"] == "RagGrpoJob" and each["regarding"]["name"] == name
    ]
    return sorted(about, key=lambda each: str(each["eventTime"]))
