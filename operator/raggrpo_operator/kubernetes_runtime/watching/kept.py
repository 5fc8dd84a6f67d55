"""What the caches keep of objects: only what rounds read. Pure.

The rest is memory that anybody who may create objects could make the operator spend.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from raggrpo_api import names
from raggrpo_operator.kube.client import CONFIG_MAPS, DEPLOYMENTS, PODS, RAY_CLUSTERS, Manifest
from raggrpo_operator.kube.cluster_objects import RAY_CLUSTER_LABEL, RAY_NODE_TYPE_LABEL

CHILDREN = (RAY_CLUSTERS, PODS, CONFIG_MAPS, DEPLOYMENTS)
"""What is watched besides jobs."""
MAX_ANNOTATION = 253
MAX_SPEC_BYTES = 2 * names.MAX_SPEC_BYTES
TOO_LARGE = "tooLarge"
"""Key that holds the bytes of a spec in place of the spec."""
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
    RAY_CLUSTER_LABEL,
    RAY_NODE_TYPE_LABEL,
)
ANNOTATIONS = (names.ANNOTATION_RETRY, names.ANNOTATION_TOKEN_KEY)
POD_STATUS = (
    "phase",
    "reason",
    "message",
    "conditions",
    "initContainerStatuses",
    "containerStatuses",
)


def kept(body: Mapping[str, Any]) -> Manifest:
    """Return what is kept of a job or a child; the same again for what this has returned."""
    return kept_job(body) if body.get("kind") == names.KIND else kept_child(body)


def kept_job(body: Mapping[str, Any]) -> Manifest:
    """Return a job with its spec and status; of a spec far beyond what is accepted, its size."""
    found = _only(body, ("apiVersion", "kind", "spec", "status", TOO_LARGE)) | _metadata(body)
    size = len(json.dumps(found.get("spec", {})))
    return found if size <= MAX_SPEC_BYTES else found | {"spec": {}, TOO_LARGE: size}


def kept_child(body: Mapping[str, Any]) -> Manifest:
    """Return an object that the operator, KubeRay or a Deployment has made for a job."""
    found = _only(body, ("apiVersion", "kind")) | _metadata(body)
    spec, status = body.get("spec", {}), body.get("status", {})
    match body.get("kind"):
        case "Pod":
            resources = [_only(each, ("resources",)) for each in spec.get("containers", [])]
            found["spec"] = {"nodeName": spec.get("nodeName", ""), "containers": resources}
            found["status"] = _only(status, POD_STATUS)
        case "RayCluster":
            groups = spec.get("workerGroupSpecs", [])
            sizes = [_only(each, ("replicas", "numOfHosts")) for each in groups]
            found["spec"] = _only(spec, ("suspend", "authOptions")) | {"workerGroupSpecs": sizes}
            found["status"] = _only(status, ("conditions", "readyWorkerReplicas"))
        case "Deployment":
            found["status"] = _only(status, ("readyReplicas",))
    return found


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


def _only(whole: Mapping[str, Any], wanted: Iterable[str]) -> Manifest:
    return {name: whole[name] for name in wanted if name in whole}
