"""Kubernetes Events about a job, on transitions of its conditions only. Pure."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from raggrpo_api import names
from raggrpo_api.status import Condition, ConditionType, JobStatus
from raggrpo_operator.core.lifecycle.round import PODS_WAITING
from raggrpo_operator.core.state.conditions import get_condition
from raggrpo_operator.kube.client import Manifest

MAX_NOTE = 1024
"""Bytes that the API server takes."""
BAD_WHEN_FALSE = frozenset(
    {
        ConditionType.ACCEPTED,
        ConditionType.PREFLIGHT_PASSED,
        ConditionType.RESUME_VERIFIED,
        ConditionType.CHECKPOINT_HEALTHY,
    }
)
BAD_WHEN_TRUE = frozenset(
    {
        ConditionType.FAILED,
        ConditionType.STALLED,
        ConditionType.WAITING_FOR_ENDPOINT,
        ConditionType.SLOWING_DOWN,
        ConditionType.HOST_MEMORY_GROWING,
        ConditionType.RECONCILING,
    }
)
SILENT = frozenset({ConditionType.READY})
"""Implied by the others."""
WARNINGS = frozenset({"Restarting", PODS_WAITING})
"""Reasons that deserve attention whatever the status."""


@dataclass(frozen=True, slots=True)
class Transition:
    """A condition with a new value or reason, or with the same reason for another pod."""

    condition: Condition
    is_warning: bool


def transitions(old: JobStatus, new: JobStatus) -> Iterator[Transition]:
    """Yield what changed between two statuses, in the order of conditions."""
    for condition in new.conditions:
        before = get_condition(old, condition.type)
        same = _subject(before) == _subject(condition)
        if not (same or condition.type in SILENT or _says_nothing(before, condition)):
            yield Transition(condition, _is_warning(condition))


def _subject(condition: Condition) -> tuple[str, str, str]:
    """Return what makes an Event new; for waiting pods also the message, which names the pod."""
    message = condition.message if condition.reason == PODS_WAITING else ""
    return condition.status, condition.reason, message


def _says_nothing(before: Condition, now: Condition) -> bool:
    """Return whether a condition that was never set merely takes its normal value."""
    quiet = now.type in BAD_WHEN_TRUE or now.type is ConditionType.SUSPENDED
    return quiet and now.status == "False" and before.status == "Unknown"


def _is_warning(condition: Condition) -> bool:
    bad = {"False": BAD_WHEN_FALSE, "True": BAD_WHEN_TRUE}.get(condition.status, frozenset())
    return condition.type in bad or condition.reason in WARNINGS


def render_event(body: Manifest, transition: Transition, now: datetime, instance: str) -> Manifest:
    """Return the Event about a job; `instance` is the replica that reports it."""
    metadata = body["metadata"]
    condition = transition.condition
    note = f"{condition.type}={condition.status}"
    if condition.message:
        note = f"{note}: {condition.message}"
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {
            "name": f"{metadata['name']}.{uuid.uuid4().hex[:16]}",
            "namespace": metadata["namespace"],
        },
        "type": "Warning" if transition.is_warning else "Normal",
        "reason": condition.reason,
        "action": "Reconcile",
        "note": note.encode()[:MAX_NOTE].decode(errors="ignore"),
        "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": "raggrpo.io/operator",
        "reportingInstance": instance,
        "regarding": {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
    }
