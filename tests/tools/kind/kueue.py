"""Kueue on a test cluster; it manages only objects with the label of its queue.

Installed from the module's kustomization, with an image built from its program.
"""

import json
from typing import Any

import yaml

from raggrpo_api.names import LABEL_QUEUE
from tools.kind.go_programs import KUEUE, tool_folder
from tools.kind.kind_cluster import BASE_IMAGE, READY_SECONDS, build_manager, has_image, load
from tools.kind.kubernetes import Kubernetes
from tools.kind.objects import make_pod

IMAGE = f"raggrpo-kueue:{KUEUE}"
QUEUE = "research"
HIGH = "high"
CPU = "250m"
"""CPU quota of the queue: enough for one small job of 200m, not for two."""
MEMORY = "64Gi"
"""Memory quota of the queue, which no job exceeds."""
FLAVOR = {"kubernetes.io/os": "linux"}
"""Labels of the nodes of the quota; Kueue adds them to pods as node selector."""
FRAMEWORKS = ["batch/job", "ray.io/raycluster"]
WEBHOOK_GROUPS = {"batch", "kueue.x-k8s.io", "ray.io"}
"""API groups with webhooks of Kueue; none for pods, which could not start while Kueue is down."""

Manifest = dict[str, Any]


def install(cluster: Kubernetes) -> None:
    """Install Kueue with one queue and wait until the queue is active."""
    if not has_image(IMAGE):
        build_manager("kueue", IMAGE)
    load(IMAGE)
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": _manifests(cluster)})
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=text)
    cluster.kubectl(
        "rollout", "status", "deployment/kueue-controller-manager", "-n", "kueue-system",
        f"--timeout={READY_SECONDS}s", deadline=READY_SECONDS + 30,
    )  # fmt: skip
    cluster.apply(*_queue())
    cluster.kubectl("wait", f"clusterqueue/{QUEUE}", "--for=condition=Active", "--timeout=60s")


def remove(cluster: Kubernetes) -> None:
    """Uninstall Kueue; its objects first, because Kueue removes their finalizers."""
    gone = ("--for=delete", "--timeout=90s")
    cluster.kubectl("wait", "workloads.kueue.x-k8s.io", "--all", "-A", *gone)
    for each in _queue():
        cluster.kubectl("delete", each["kind"], each["metadata"]["name"], "--timeout=60s")
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": _manifests(cluster)})
    cluster.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=text)


def make_local_queue() -> Manifest:
    """Return the LocalQueue that a namespace needs to use the queue."""
    return _object("LocalQueue", QUEUE, spec={"clusterQueue": QUEUE})


def make_competing_job(name: str, *, priority: str = "") -> Manifest:
    """Return a batch Job that requests the whole quota until it is deleted."""
    labels = {LABEL_QUEUE: QUEUE}
    if priority:
        labels["kueue.x-k8s.io/priority-class"] = priority
    requests = {"cpu": CPU, "memory": "16Mi"}
    pod = make_pod(name, BASE_IMAGE, ["sleep", "infinity"], resources={"requests": requests})
    pod["spec"]["terminationGracePeriodSeconds"] = 1
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels},
        "spec": {"suspend": True, "template": {"spec": pod["spec"]}},
    }


def wait_for_usage(cluster: Kubernetes, **amounts: str) -> None:
    """Wait until the queue's usage equals `amounts`."""
    for name, amount in amounts.items():
        total = f'{{.status.flavorsUsage[0].resources[?(@.name=="{name}")].total}}'
        cluster.kubectl(
            "wait", f"clusterqueue/{QUEUE}", f"--for=jsonpath={total}={amount}", "--timeout=60s"
        )


def _manifests(cluster: Kubernetes) -> list[Manifest]:
    kustomization = tool_folder("kueue-config") / "default"
    rendered = cluster.kubectl("kustomize", str(kustomization)).stdout
    manifests = [each for each in yaml.safe_load_all(rendered) if each["kind"] != "APIService"]
    for each in manifests:
        if each["kind"] == "Deployment":
            [container] = each["spec"]["template"]["spec"]["containers"]
            container |= {"image": IMAGE, "imagePullPolicy": "IfNotPresent"}
            container["resources"]["requests"] = {"cpu": "50m", "memory": "128Mi"}
        elif each["kind"] == "ConfigMap":
            [(file, text)] = each["data"].items()
            settings = yaml.safe_load(text) | {"integrations": {"frameworks": FRAMEWORKS}}
            each["data"] = {file: yaml.safe_dump(settings)}
        elif "webhooks" in each:
            each["webhooks"] = [
                hook for hook in each["webhooks"] if _groups(hook) <= WEBHOOK_GROUPS
            ]
    return manifests


def _groups(hook: Manifest) -> set[str]:
    return {group for rule in hook["rules"] for group in rule["apiGroups"]}


def _queue() -> list[Manifest]:
    quotas = [{"name": "cpu", "nominalQuota": CPU}, {"name": "memory", "nominalQuota": MEMORY}]
    covered = [each["name"] for each in quotas]
    flavor = {"name": QUEUE, "resources": quotas}
    spec = {
        "namespaceSelector": {},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [{"coveredResources": covered, "flavors": [flavor]}],
    }
    return [
        _object("ClusterQueue", QUEUE, spec=spec),
        _object("ResourceFlavor", QUEUE, spec={"nodeLabels": FLAVOR}),
        _object("WorkloadPriorityClass", HIGH, value=1000),
    ]


def _object(kind: str, name: str, **content: Any) -> Manifest:
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": kind,
        "metadata": {"name": name},
        **content,
    }
