"""Adversarial jobs on a real API server: rejected by it or by the operator, or fully accepted.

No spec may pass admission and then fail forever when pods or a RayCluster are created.
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
def test_adversarial_jobs_are_rejected_or_create_valid_objects(
    http: httpx.Client, restricted: str
) -> None:
    outcomes: Counter[str] = Counter()
    rejected_objects: list[str] = []
    for raw in adversarial_jobs(SPECS, seed=1):
        raw["metadata"]["namespace"] = restricted
        if message := refusal(http, restricted, raw):
            assert ": " in message, message
            outcomes["rejected at admission"] += 1
            continue
        verdict = first_round(raw)
        outcomes["rejected by a rule" if verdict.refused else "accepted"] += 1
        rejected_objects += [
            f"{manifest['kind']}: {message[:500]} of {json.dumps(raw['spec'])[:500]}"
            for manifest in [*verdict.objects.values(), *verdict.events]
            if (message := refusal(http, restricted, manifest))
        ]
    assert rejected_objects == []
    assert len(outcomes) == 3, outcomes  # each outcome occurs
