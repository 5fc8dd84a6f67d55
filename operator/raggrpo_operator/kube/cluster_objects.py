"""What the operator has seen of the cluster: objects by the job they belong to. Holds no client."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from raggrpo_api import names

from .client import Manifest

RAY_CLUSTER_LABEL = "ray.io/cluster"
"""With the RayCluster's name on every pod that KubeRay makes."""


class JobKey(NamedTuple):
    """Which job."""

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
    """Live views of the informer's caches, one per kind; empty until they are filled."""

    jobs: ByJob = field(default_factory=dict)
    ray_clusters: ByJob = field(default_factory=dict)
    pods: ByJob = field(default_factory=dict)
    config_maps: ByJob = field(default_factory=dict)
    deployments: ByJob = field(default_factory=dict)


def job_key_of(child: Mapping[str, Any]) -> JobKey:
    """Return the job of one of our objects, by its label."""
    metadata = child["metadata"]
    return JobKey(metadata["namespace"], metadata.get("labels", {}).get(names.LABEL_JOB, ""))


def owned_by(uid: str, objects: Collection[Manifest]) -> list[Manifest]:
    """Return those objects that belong to this very job, not to a deleted one of its name."""
    return [each for each in objects if uid in owner_uids(each)]


def owner_uids(child: Mapping[str, Any]) -> list[str]:
    """Return the uids of the owners of an object."""
    return [owner["uid"] for owner in child["metadata"].get("ownerReferences", [])]


def is_going(thing: Mapping[str, Any]) -> bool:
    """Tell whether an object is being deleted."""
    return bool(thing["metadata"].get("deletionTimestamp"))


def condition_of(thing: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return a condition of an object's status, empty when it has none of this type."""
    for condition in thing.get("status", {}).get("conditions", []):
        if condition["type"] == kind:
            found: Mapping[str, Any] = condition
            return found
    return {}
