"""Builders of Pods and RayClusters as the API server returns them."""

from typing import Any

from raggrpo_api import names

Manifest = dict[str, Any]
JOB_UID, CLUSTER_UID = "5f1d", "c-uid"
JOB = {"kind": "RagGrpoJob", "name": "small", "uid": JOB_UID, "controller": True}
CLUSTER = {"kind": "RayCluster", "name": "small-c1", "uid": CLUSTER_UID, "controller": True}


def make_pod(status: Manifest | None = None, **about: Any) -> Manifest:
    """Return a pod of Ray cluster `small-c1`. `kind`: head or worker. `going`: terminating."""
    kind, name = about.get("kind", "worker"), about.get("name", "small-c1-worker-0")
    metadata: Manifest = {
        "name": name,
        "namespace": "default",
        "uid": about.get("uid", f"uid-{name}"),
        "labels": {
            names.LABEL_JOB: "small",
            names.LABEL_ROLE: about.get("role", "head" if kind == "head" else "trainer"),
            "ray.io/cluster": "small-c1",
            "ray.io/node-type": kind,
            **about.get("labels", {}),
        },
        "ownerReferences": [about.get("owner", CLUSTER)],
        "creationTimestamp": about.get("created", "2026-11-21T12:00:00Z"),
    }
    if about.get("going"):
        metadata["deletionTimestamp"] = "2026-11-21T12:00:30Z"
        metadata["deletionGracePeriodSeconds"] = 30
    limits = {"limits": {"memory": "2Gi"}}
    spec = {"containers": [{"name": "ray", "resources": limits}]} | about.get("spec", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": spec,
        "status": status or {"phase": "Running"},
    }


def ended(
    reason: str = "Error",
    code: int = 1,
    at: str | None = "2026-11-21T12:01:00Z",
    message: str = "",
) -> Manifest:
    how = {"reason": reason, "exitCode": code, "finishedAt": at, "message": message}
    return {"terminated": how}


def container(state: Manifest | None = None, last: Manifest | None = None) -> Manifest:
    status: Manifest = {"name": names.WORKER_CONTAINER, "state": state or {"running": {}}}
    if last is not None:
        status["lastState"] = last
    return {"phase": "Running", "containerStatuses": [status]}


def with_proxy_sidecar(status: Manifest) -> Manifest:
    """Return the pod status with a service mesh sidecar as the first container."""
    proxy = {"name": "istio-proxy", "imageID": f"sha256:{'9' * 64}", "state": ended(code=0)}
    return {**status, "containerStatuses": [proxy, *status["containerStatuses"]]}


def make_ray_cluster(*, ready_workers: int = 2, head_ready: bool = True, **about: Any) -> Manifest:
    head = {"type": "HeadPodReady", "status": "True" if head_ready else "False"}
    metadata = {
        "name": "small-c1",
        "namespace": "default",
        "uid": CLUSTER_UID,
        "labels": {names.LABEL_CLUSTER: "1", names.LABEL_JOB: "small"},
        "annotations": {},
        "ownerReferences": [JOB],
    }
    if about.get("going"):
        metadata["deletionTimestamp"] = "2026-11-21T12:00:30Z"
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": metadata,
        "spec": {"workerGroupSpecs": [{"groupName": "trainer", "replicas": 2}]},
        "status": {
            "conditions": [head, *about.get("conditions", [])],
            "readyWorkerReplicas": ready_workers,
        },
    }
