"""What the operator has seen of the cluster: objects grouped by job. Must not call the API."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from raggrpo_api import names

from .client import Manifest

NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)
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

    def job(self, key: JobKey) -> Manifest | None:
        """Return the job as the cache has it, None if it has none."""
        return next(iter(self.jobs.get(key, ())), None)


def job_key_of(child: Mapping[str, Any]) -> JobKey:
    """Return the job that one of our objects belongs to, by label."""
    return JobKey(child["metadata"]["namespace"], labels_of(child).get(names.LABEL_JOB, ""))


def owned_by(uid: str, objects: Collection[Manifest]) -> list[Manifest]:
    """Return what is controlled by this very object, not by a deleted one of the same name."""
    return [each for each in objects if is_owned(each, uid)]


def is_owned(child: Mapping[str, Any], uid: str) -> bool:
    """Return whether this uid controls the object; anybody may be listed as a further owner."""
    return bool(uid) and controller_of(child).get("uid") == uid


def controller_of(child: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the reference to the one owner that manages the object, empty if there is none."""
    for owner in child["metadata"].get("ownerReferences", []):
        if owner.get("controller"):
            found: Mapping[str, Any] = owner
            return found
    return {}


def labels_of(thing: Mapping[str, Any]) -> Mapping[str, str]:
    """Return an object's labels; somebody may have removed them all."""
    found: Mapping[str, str] = thing["metadata"].get("labels", {})
    return found


def label_number(thing: Mapping[str, Any], label: str) -> int | None:
    """Return the number in a label, None if somebody else wrote something there."""
    text = labels_of(thing).get(label, "")
    return int(text) if NUMBER.fullmatch(text) else None


def is_being_deleted(thing: Mapping[str, Any]) -> bool:
    """Return whether an object is being deleted."""
    return bool(thing["metadata"].get("deletionTimestamp"))


def section(thing: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a part of an object, empty if there is none or it is null."""
    found: Mapping[str, Any] = thing.get(name) or {}
    return found


def condition_of(thing: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return the condition of this type from an object's status, empty if there is none."""
    for condition in section(thing, "status").get("conditions") or []:
        if condition["type"] == kind:
            found: Mapping[str, Any] = condition
            return found
    return {}
