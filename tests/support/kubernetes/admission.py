"""Admission of a job by the API server and by the operator's first round."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.status.conditions import ConditionType
from raggrpo_api.status.job_status import JobStatus, sparse_status
from raggrpo_operator.core.lifecycle.decide import decide
from raggrpo_operator.core.lifecycle.observed import Observed
from raggrpo_operator.core.spec.parse import parse_job
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.core.spec.violation import Violation
from raggrpo_operator.core.state.conditions import get_condition, set_condition
from raggrpo_operator.core.text.plan import render_plan
from raggrpo_operator.kubernetes_runtime.rounds.events import render_event, transitions
from support.builders.operator.manifests import SETTINGS, Manifest, objects_of, sizing_of

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)

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


@dataclass(frozen=True)
class Verdict:
    """Result of a job's first round."""

    status: Manifest
    events: list[Manifest]
    refused: bool
    message: str
    """Reason of the rejection, or ""."""
    objects: dict[str, Manifest] = field(default_factory=dict)
    """Objects of the first attempt; empty if the job was rejected."""
    seconds: float = 0.0


def refusal(http: httpx.Client, namespace: str, manifest: Mapping[str, Any]) -> str:
    """Return the API server's reason for rejecting an object, or "" if it accepts it."""
    path = RESOURCES[manifest["kind"]].format(f"namespaces/{namespace}")
    options = {"dryRun": "All", "fieldValidation": "Strict"}
    answer = http.post(f"/{path}", params=options, json=manifest)
    # Missing PriorityClasses are expected: they depend on the cluster.
    if answer.is_success or "no PriorityClass with name" in answer.text:
        return ""
    assert answer.is_client_error, answer.text
    return str(answer.json()["message"])


def first_round(raw: Mapping[str, Any]) -> Verdict:
    """Return the result of a job's first round. Any exception is a bug."""
    start = time.perf_counter()
    job = parse_job(raw)
    status = _decided(job) if isinstance(job, RagGrpoJob) else _malformed(job)
    accepted = get_condition(status, ConditionType.ACCEPTED)
    refused = accepted.status != "True"
    objects: dict[str, Manifest] = {}
    if isinstance(job, RagGrpoJob) and not refused:
        objects = objects_of(job)
        render_plan(job, resolve(job), sizing_of(job), ())
    body = {"metadata": raw["metadata"]}
    events = [render_event(body, each, NOW, "test") for each in transitions(JobStatus(), status)]
    seconds = time.perf_counter() - start
    return Verdict(
        sparse_status(status),
        events,
        refused,
        accepted.message,
        objects,
        seconds,
    )


def _decided(job: RagGrpoJob) -> JobStatus:
    return decide(job, Observed(default_image=SETTINGS.trainer_image), NOW).status


def _malformed(violations: tuple[Violation, ...]) -> JobStatus:
    lines = "\n".join(violation.line() for violation in violations)
    reason = str(violations[0].reason)
    return set_condition(JobStatus(), ConditionType.ACCEPTED, False, reason, lines, NOW)
