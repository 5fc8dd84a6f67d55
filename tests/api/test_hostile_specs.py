"""Hostile jobs against the real API server: refused by it, refused by us, or wholly accepted.

So no spec can pass admission and then fail for ever where pods or a RayCluster are created.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest

from support.admission import first_round
from support.builders.hostile_specs import hostile_jobs
from tools.kind.api_server import ADMIN_TOKEN, ApiServer

SPECS = int(os.environ.get("RAGGRPO_FUZZ_SPECS", "300"))
RESOURCES = {
    "Pod": "api/v1/{}/pods",
    "ConfigMap": "api/v1/{}/configmaps",
    "Secret": "api/v1/{}/secrets",
    "Service": "api/v1/{}/services",
    "Deployment": "apis/apps/v1/{}/deployments",
    "NetworkPolicy": "apis/networking.k8s.io/v1/{}/networkpolicies",
    "RayCluster": "apis/ray.io/v1/{}/rayclusters",
    "RagGrpoJob": "apis/raggrpo.io/v1alpha1/{}/raggrpojobs",
    "Event": "apis/events.k8s.io/v1/{}/events",
}


@pytest.fixture
def restricted(api_server: ApiServer, namespace: str) -> str:
    """A namespace that enforces Pod Security `restricted`."""
    label = "pod-security.kubernetes.io/enforce=restricted"
    api_server.kubectl("label", "namespace", namespace, label)
    return namespace


@pytest.fixture
def admission(api_server: ApiServer) -> Iterator[httpx.Client]:
    with httpx.Client(
        base_url=api_server.url,
        headers={"Authorization": f"Bearer {ADMIN_TOKEN}"},
        verify=str(api_server.authority),
        timeout=30,
    ) as client:
        yield client


def refusal(client: httpx.Client, namespace: str, manifest: Mapping[str, Any]) -> str:
    """Return why the server would not create an object, empty when it would."""
    path = RESOURCES[manifest["kind"]].format(f"namespaces/{namespace}")
    answer = client.post(
        f"/{path}", params={"dryRun": "All", "fieldValidation": "Strict"}, json=manifest
    )
    # Which PriorityClasses there are is known only when pods are made.
    if answer.is_success or "no PriorityClass with name" in answer.text:
        return ""
    return str(answer.json()["message"])


def test_whatever_is_admitted_has_a_condition_or_can_be_created(
    admission: httpx.Client, restricted: str
) -> None:
    ends: Counter[str] = Counter()
    wrong: list[str] = []
    for raw in hostile_jobs(SPECS, seed=1):
        raw["metadata"]["namespace"] = restricted
        if said := refusal(admission, restricted, raw):
            assert ": " in said, said
            ends["refused at admission"] += 1
            continue
        verdict = first_round(raw)
        ends["refused by a rule" if verdict.refused else "accepted"] += 1
        wrong += [
            f"{manifest['kind']}: {said[:500]} of {json.dumps(raw['spec'])[:500]}"
            for manifest in [*verdict.objects.values(), *verdict.events]
            if (said := refusal(admission, restricted, manifest))
        ]
    assert wrong == []
    assert len(ends) == 3, ends  # each of the three ends is tested
