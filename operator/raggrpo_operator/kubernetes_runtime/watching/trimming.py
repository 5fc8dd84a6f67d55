"""Trim objects to the fields that rounds read. Pure.

Without trimming, a user who may create objects could make the operator run out of memory.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from raggrpo_api import limits, names
from raggrpo_api.fields.json_values import size_problem
from raggrpo_api.trainer.config import content_hash
from raggrpo_operator.core.spec.parse import MAX_DEPTH
from raggrpo_operator.kube.client import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    NETWORK_POLICIES,
    PODS,
    RAY_CLUSTERS,
    SERVICES,
    Manifest,
)
from raggrpo_operator.kube.cluster_objects import (
    POD_TEMPLATE_LABEL,
    RAY_CLUSTER_LABEL,
    RAY_NODE_TYPE_LABEL,
)

CHILDREN = (RAY_CLUSTERS, PODS, CONFIG_MAPS, DEPLOYMENTS, SERVICES, NETWORK_POLICIES)
"""Kinds watched in addition to jobs."""
MAX_ANNOTATION = 253
MAX_SPEC_BYTES = 2 * limits.MAX_SPEC_BYTES
MAX_SPEC_VALUES = 2_000
"""Maximum number of values in a spec; two bytes of JSON may take 400 bytes in Python."""
MAX_CONTAINERS = 8
TOO_LARGE = "tooLarge"
"""Key of a trimmed job with the reason for which its spec was removed."""
SPEC_HASH = "specHash"
"""Key of a trimmed NetworkPolicy with the hash of its spec, which may be large."""
IDENTITY = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)
LABELS = (
    names.LABEL_JOB,
    names.LABEL_ROLE,
    names.LABEL_ATTEMPT,
    names.LABEL_CLUSTER,
    names.LABEL_RETRIEVER,
    names.LABEL_SPEC_HASH,
    names.LABEL_QUEUE,
    POD_TEMPLATE_LABEL,
    RAY_CLUSTER_LABEL,
    RAY_NODE_TYPE_LABEL,
)
ANNOTATIONS = (names.ANNOTATION_RETRY, names.ANNOTATION_TOKEN_KEY)
POD_STATUS = (
    "phase",
    "reason",
    "message",
    "conditions",
)
DEPLOYMENT_STATUS = (
    "observedGeneration",
    "replicas",
    "updatedReplicas",
    "availableReplicas",
    "conditions",
)
STATUSES = ("initContainerStatuses", "containerStatuses")


def trim_object(body: Mapping[str, Any]) -> Manifest:
    """Return a trimmed job or child object; trimming is idempotent."""
    return trim_job(body) if body.get("kind") == names.KIND else trim_child(body)


def trim_job(body: Mapping[str, Any]) -> Manifest:
    """Return a trimmed job; if its spec exceeds a limit, the reason under TOO_LARGE replaces it."""
    job = _only(body, ("apiVersion", "kind", "spec", "status", TOO_LARGE)) | _metadata(body)
    reason = _excess(job.get("spec", {}))
    return job | {"spec": {}, TOO_LARGE: reason} if reason else job


def trim_child(body: Mapping[str, Any]) -> Manifest:
    """Return a trimmed object that the operator, KubeRay or a Deployment created for a job."""
    child = _only(body, ("apiVersion", "kind")) | _metadata(body)
    spec = body.get("spec") or {}
    status = body.get("status") or {}
    match body.get("kind"):
        case "Pod":
            limits = [
                _only((each.get("resources") or {}).get("limits") or {}, ("memory",))
                for each in (spec.get("containers") or [])[:1]
            ]
            containers = [{"resources": {"limits": each}} for each in limits]
            child["spec"] = {"nodeName": spec.get("nodeName", ""), "containers": containers}
            child["status"] = _only(status, POD_STATUS) | {
                kind: status[kind][:MAX_CONTAINERS] for kind in STATUSES if status.get(kind)
            }
        case "RayCluster":
            groups = spec.get("workerGroupSpecs") or []
            sizes = [_only(each, ("replicas", "numOfHosts")) for each in groups]
            child["spec"] = _only(spec, ("suspend", "authOptions")) | {"workerGroupSpecs": sizes}
            child["status"] = _only(status, ("conditions", "readyWorkerReplicas"))
        case "Deployment":
            child["spec"] = _only(spec, ("replicas",))
            child["status"] = _only(status, DEPLOYMENT_STATUS)
        case "NetworkPolicy":
            child[SPEC_HASH] = body.get(SPEC_HASH) or content_hash(spec)
    return child


def _excess(spec: object) -> str:
    if reason := size_problem(spec, MAX_DEPTH, MAX_SPEC_VALUES):
        return reason
    size = len(json.dumps(spec))
    return f"it has {size} bytes (limit {MAX_SPEC_BYTES})" if size > MAX_SPEC_BYTES else ""


def _metadata(body: Mapping[str, Any]) -> Manifest:
    metadata = body["metadata"]
    annotations = _only(metadata.get("annotations", {}), ANNOTATIONS)
    return {
        "metadata": {
            **_only(metadata, IDENTITY),
            "labels": _only(metadata.get("labels", {}), LABELS),
            "annotations": {name: text[:MAX_ANNOTATION] for name, text in annotations.items()},
            "ownerReferences": [
                each for each in metadata.get("ownerReferences", []) if each.get("controller")
            ],
        }
    }


def _only(mapping: Mapping[str, Any], keys: Iterable[str]) -> Manifest:
    return {key: mapping[key] for key in keys if key in mapping}
