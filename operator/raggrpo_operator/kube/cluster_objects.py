"""Cached cluster objects by job, and functions that read their fields. Must not call the API."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from raggrpo_api import names

from .client import Manifest

NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)
RAY_CLUSTER_LABEL = "ray.io/cluster"
"""Label on every pod that KubeRay creates; its value is the name of the RayCluster."""
RAY_NODE_TYPE_LABEL = "ray.io/node-type"

POD_TEMPLATE_LABEL = "pod-template-hash"
"""Label on the pods of a Deployment; its value is the suffix of the name of their ReplicaSet."""


class JobKey(NamedTuple):
    """Namespace and name of a job."""

    namespace: str
    name: str

    @classmethod
    def of(cls, job: Mapping[str, Any]) -> "JobKey":
        """Return the key of a job."""
        return cls(job["metadata"]["namespace"], job["metadata"]["name"])

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


ByJob = Mapping[JobKey, Collection[Manifest]]


@dataclass(slots=True)
class ClusterObjects:
    """Live views of the informer caches, by kind; empty until the caches are synced."""

    jobs: ByJob = field(default_factory=dict)
    ray_clusters: ByJob = field(default_factory=dict)
    pods: ByJob = field(default_factory=dict)
    config_maps: ByJob = field(default_factory=dict)
    deployments: ByJob = field(default_factory=dict)
    services: ByJob = field(default_factory=dict)
    network_policies: ByJob = field(default_factory=dict)

    def job(self, key: JobKey) -> Manifest | None:
        """Return the cached job, or None if the cache does not contain it."""
        return next(iter(self.jobs.get(key, ())), None)


def job_key_of(child: Mapping[str, Any]) -> JobKey:
    """Return the key of the job that the label of an object names."""
    return JobKey(child["metadata"]["namespace"], labels_of(child).get(names.LABEL_JOB, ""))


def owned_by(uid: str, objects: Collection[Manifest]) -> list[Manifest]:
    """Return the objects whose controller has this uid.

    This excludes the objects of a deleted job of the same name.
    """
    return [each for each in objects if is_owned(each, uid)]


def is_owned(child: Mapping[str, Any], uid: str) -> bool:
    """Return whether the controller of the object has this uid; other owners do not count."""
    return bool(uid) and controller_of(child).get("uid") == uid


def controller_of(child: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the owner reference of the controller, or {} if the object has no controller."""
    for owner in child["metadata"].get("ownerReferences", []):
        if owner.get("controller"):
            controller: Mapping[str, Any] = owner
            return controller
    return {}


def labels_of(manifest: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the labels of an object, or {} if it has no labels."""
    labels: Mapping[str, str] = manifest["metadata"].get("labels", {})
    return labels


def label_number(manifest: Mapping[str, Any], label: str) -> int | None:
    """Return the number in a label, or None if the label is not a number."""
    text = labels_of(manifest).get(label, "")
    return int(text) if NUMBER.fullmatch(text) else None


def is_being_deleted(manifest: Mapping[str, Any]) -> bool:
    """Return whether an object is being deleted."""
    return bool(manifest["metadata"].get("deletionTimestamp"))


def section(manifest: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a mapping in a field of an object, or {} if the field is missing or null."""
    mapping: Mapping[str, Any] = manifest.get(name) or {}
    return mapping


def condition_of(manifest: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return the condition of type `kind`, or {} if the object has no such condition."""
    conditions: list[Mapping[str, Any]] = section(manifest, "status").get("conditions") or []
    return next((each for each in conditions if each["type"] == kind), {})
