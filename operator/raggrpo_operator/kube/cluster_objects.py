"""What the operator has seen of the cluster: objects grouped by job. Must not call the API."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from raggrpo_api import names

from .client import Manifest

RAY_CLUSTER_LABEL = "ray.io/cluster"
"""Holds the RayCluster's name on every pod that KubeRay creates."""
RAY_NODE_TYPE_LABEL = "ray.io/node-type"


class JobKey(NamedTuple):
    """Identifies a job."""

    namespace: str
    name: str

    @classmethod
    def of(cls, job: Mapping[str, Any]) -> "JobKey":
        """Return the key of a job object."""
        return cls(job["metadata"]["namespace"], job["metadata"]["name"])

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


ByJob = Mapping[JobKey, Collection[Manifest]]


@dataclass(slots=True)
class ClusterObjects:
    """Live views of the informer's caches, one per kind; empty until the caches are filled."""

    jobs: ByJob = field(default_factory=dict)
    ray_clusters: ByJob = field(default_factory=dict)
    pods: ByJob = field(default_factory=dict)
    config_maps: ByJob = field(default_factory=dict)
    deployments: ByJob = field(default_factory=dict)


def job_key_of(child: Mapping[str, Any]) -> JobKey:
    """Return the job that one of our objects belongs to, by label."""
    metadata = child["metadata"]
    return JobKey(metadata["namespace"], metadata.get("labels", {}).get(names.LABEL_JOB, ""))


def owned_by(uid: str, objects: Collection[Manifest]) -> list[Manifest]:
    """Return the objects owned by this very job, not by a deleted one of the same name."""
    return [each for each in objects if uid in owner_uids(each)]


def owner_uids(child: Mapping[str, Any]) -> list[str]:
    """Return the uids of an object's owners."""
    return [owner["uid"] for owner in child["metadata"].get("ownerReferences", [])]


def is_going(thing: Mapping[str, Any]) -> bool:
    """Return whether an object is being deleted."""
    return bool(thing["metadata"].get("deletionTimestamp"))


def part(thing: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a part of an object, empty if there is none or it is null."""
    found: Mapping[str, Any] = thing.get(name) or {}
    return found


def condition_of(thing: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return the condition of this type from an object's status, empty if there is none."""
    for condition in part(thing, "status").get("conditions") or []:
        if condition["type"] == kind:
            found: Mapping[str, Any] = condition
            return found
    return {}
