"""Fake Kueue: suspends RayClusters at creation, admits and preempts them.

A policy of the API server suspends RayClusters with a queue label, as Kueue's webhook does.
Admission unsuspends them and adds the flavor's node selector to the pod templates.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from raggrpo_api.names import LABEL_QUEUE
from support.fakes.fake_kuberay import Api, path_of

SECONDS = 60.0
NODE_SELECTOR = {"example.com/flavour": "reserved"}
POLICIES = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies"
BINDINGS = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings"
NAME = "fake-kueue"
POLICY: dict[str, Any] = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "MutatingAdmissionPolicy",
    "metadata": {"name": NAME},
    "spec": {
        "reinvocationPolicy": "Never",
        "matchConstraints": {
            "resourceRules": [
                {
                    "apiGroups": ["ray.io"],
                    "apiVersions": ["v1"],
                    "operations": ["CREATE"],
                    "resources": ["rayclusters"],
                }
            ]
        },
        "matchConditions": [
            {
                "name": "has-a-queue",
                "expression": f"'{LABEL_QUEUE}' in object.metadata.?labels.orValue({{}})",
            }
        ],
        "mutations": [
            {
                "patchType": "ApplyConfiguration",
                "applyConfiguration": {"expression": "Object{spec: Object.spec{suspend: true}}"},
            }
        ],
    },
}
BINDING: dict[str, Any] = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "MutatingAdmissionPolicyBinding",
    "metadata": {"name": NAME},
    "spec": {"policyName": NAME},
}
PROBE: dict[str, Any] = {
    "apiVersion": "ray.io/v1",
    "kind": "RayCluster",
    "metadata": {"name": "probe", "labels": {LABEL_QUEUE: "research"}},
    "spec": {"headGroupSpec": {"rayStartParams": {}, "template": {"spec": {"containers": []}}}},
}


class FakeKueue:
    """Admits and preempts the RayClusters of a namespace."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api, self._namespace = api, namespace

    async def admit(self, name: str) -> None:
        """Start the pods of a cluster on the nodes of a flavor."""
        path = path_of("ray.io/v1", "rayclusters", self._namespace, name)
        cluster = await self._api.get(path)
        assert cluster is not None
        spec = cluster["spec"]
        for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
            group["template"]["spec"]["nodeSelector"] = NODE_SELECTOR
        await self._api.patch(path, {"spec": {**spec, "suspend": False}})

    async def preempt(self, name: str) -> None:
        path = path_of("ray.io/v1", "rayclusters", self._namespace, name)
        await self._api.patch(path, {"spec": {"suspend": True}})


@asynccontextmanager
async def fake_kueue(api: Api, namespace: str) -> AsyncIterator[FakeKueue]:
    """Suspend every RayCluster with a queue label that is created within the context."""
    await api.create(POLICIES, POLICY)
    await api.create(BINDINGS, BINDING)
    try:
        await _until_in_force(api, namespace)
        yield FakeKueue(api, namespace)
    finally:
        await api.delete(f"{BINDINGS}/{NAME}")
        await api.delete(f"{POLICIES}/{NAME}")


async def _until_in_force(api: Api, namespace: str) -> None:
    """Wait until the policy is in force."""
    path, deadline = path_of("ray.io/v1", "rayclusters", namespace), time.monotonic() + SECONDS
    while not (await api.create(f"{path}?dryRun=All", PROBE))["spec"].get("suspend"):
        assert time.monotonic() < deadline, "the policy is not in force"
        await asyncio.sleep(0.1)
