"""Hostile jobs against the real API server: refused by it, refused by us, or wholly accepted.

So no spec can pass admission and then fail for ever where pods or a RayCluster are created.
"""

import json
import os
from collections import Counter

import httpx
import pytest

from support.builders.operator.adversarial_specs import adversarial_jobs
from support.kubernetes.admission import first_round, refusal
from tools.kind.api_server import ApiServer

SPECS = int(os.environ.get("RAGGRPO_FUZZ_SPECS", "300"))


@pytest.fixture
def restricted(api_server: ApiServer, namespace: str) -> str:
    """A namespace that enforces Pod Security `restricted`."""
    label = "pod-security.kubernetes.io/enforce=restricted"
    api_server.kubectl("label", "namespace", namespace, label)
    return namespace


@pytest.mark.row("E8")
def test_whatever_is_admitted_has_a_condition_or_can_be_created(
    http: httpx.Client, restricted: str
) -> None:
    ends: Counter[str] = Counter()
    wrong: list[str] = []
    for raw in adversarial_jobs(SPECS, seed=1):
        raw["metadata"]["namespace"] = restricted
        if said := refusal(http, restricted, raw):
            assert ": " in said, said
            ends["refused at admission"] += 1
            continue
        verdict = first_round(raw)
        ends["refused by a rule" if verdict.refused else "accepted"] += 1
        wrong += [
            f"{manifest['kind']}: {said[:500]} of {json.dumps(raw['spec'])[:500]}"
            for manifest in [*verdict.objects.values(), *verdict.events]
            if (said := refusal(http, restricted, manifest))
        ]
    assert wrong == []
    assert len(ends) == 3, ends  # each of the three ends is tested
