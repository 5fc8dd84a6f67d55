"""Requests of an attacker who has the operator's token."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from support.fakes.fake_kuberay import path_of
from support.kubernetes.chart_release import Account

Manifest = dict[str, Any]
PLURALS = {
    "Pod": ("v1", "pods"),
    "Service": ("v1", "services"),
    "Secret": ("v1", "secrets"),
    "ConfigMap": ("v1", "configmaps"),
    "PersistentVolumeClaim": ("v1", "persistentvolumeclaims"),
    "Deployment": ("apps/v1", "deployments"),
    "NetworkPolicy": ("networking.k8s.io/v1", "networkpolicies"),
    "RayCluster": ("ray.io/v1", "rayclusters"),
}


@dataclass(frozen=True)
class Target:
    """A namespace with a job, the job's objects, and objects of other owners."""

    namespace: str
    attacker: Account
    objects: Mapping[str, Manifest]

    def answer(self, attempt: "Attempt") -> httpx.Response:
        """Return the API server's response to a dry run of an attempt."""
        method, path, body = attempt.request(self)
        return self.attacker.call(method, f"{path}?dryRun=All", body)


Request = tuple[str, str, Any]


@dataclass(frozen=True)
class Attempt:
    """One request: (method, path, body) in a namespace."""

    what: str
    request: Callable[[Target], Request]


def create(what: str, name: str, change: Callable[[Manifest], Any]) -> Attempt:
    """Create one of a job's objects with a change."""

    def request(target: Target) -> Request:
        manifest = copy.deepcopy(target.objects[name])
        change(manifest)
        return "POST", collection(manifest), manifest

    return Attempt(what, request)


def patch(what: str, version: str, plural: str, body: Any) -> Attempt:
    """Change an object of another owner."""
    path = path_of(version, plural, "{ns}", "theirs")
    return request(what, "PATCH", path, body)


def request(what: str, method: str, path: str, body: Any = None) -> Attempt:
    return Attempt(what, lambda target: (method, path.format(ns=target.namespace), body))


def collection(manifest: Manifest) -> str:
    return path_of(*PLURALS[manifest["kind"]], manifest["metadata"]["namespace"])


def container(pod: Manifest) -> Manifest:
    first: Manifest = pod["spec"]["containers"][0]
    return first


def in_container(**changes: Any) -> Callable[[Manifest], None]:
    return lambda pod: container(pod).update(changes)


def in_context(**changes: Any) -> Callable[[Manifest], None]:
    return lambda pod: container(pod)["securityContext"].update(changes)


def in_spec(**changes: Any) -> Callable[[Manifest], None]:
    return lambda thing: thing["spec"].update(changes)


def in_metadata(**changes: Any) -> Callable[[Manifest], None]:
    return lambda thing: thing["metadata"].update(changes)


def with_claim(**source: Any) -> Callable[[Manifest], None]:
    return lambda pod: pod["spec"]["volumes"].append({"name": "theirs", **source})


def in_template(change: Callable[[Manifest], None]) -> Callable[[Manifest], None]:
    def changed(deployment: Manifest) -> None:
        template = deployment["spec"]["template"]
        change(template)
        deployment["spec"]["selector"] = {"matchLabels": template["metadata"]["labels"]}

    return changed


def in_head(change: Callable[[Manifest], None]) -> Callable[[Manifest], None]:
    return lambda cluster: change(cluster["spec"]["headGroupSpec"]["template"])


def in_worker(change: Callable[[Manifest], None]) -> Callable[[Manifest], None]:
    return lambda cluster: change(cluster["spec"]["workerGroupSpecs"][0]["template"])


def in_owner(**changes: Any) -> Callable[[Manifest], None]:
    return lambda thing: thing["metadata"]["ownerReferences"][0].update(changes)


def foreign_objects() -> list[Manifest]:
    labels = {"app": "theirs"}
    pod = {"containers": [{"name": "c", "image": "theirs"}]}
    template = {"metadata": {"labels": labels}, "spec": pod}
    specs: dict[str, Manifest] = {
        "Pod": {"spec": pod},
        "Service": {"spec": {"selector": labels, "ports": [{"port": 80}]}},
        "Secret": {"stringData": {"k": "theirs"}},
        "ConfigMap": {"data": {"k": "theirs"}},
        "Deployment": {
            "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
        },
        "NetworkPolicy": {"spec": {"podSelector": {"matchLabels": labels}, "ingress": []}},
        "ServiceAccount": {},
    }
    versions = {kind: version for kind, (version, _) in PLURALS.items()}
    return [
        {"apiVersion": versions.get(kind, "v1"), "kind": kind, "metadata": {"name": "theirs"}}
        | body
        for kind, body in specs.items()
    ]
