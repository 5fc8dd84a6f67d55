"""Kubernetes Events about a job: transitions of its conditions, and new warnings. Pure."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from raggrpo_api import names
from raggrpo_api.status.conditions import Condition, ConditionType
from raggrpo_api.status.job_status import JobStatus
from raggrpo_operator.core.lifecycle.round import PODS_WAITING
from raggrpo_operator.core.state.conditions import get_condition
from raggrpo_operator.core.text.event_text import sentence
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
        ConditionType.POLICY_MISMATCH,
        ConditionType.RECONCILING,
    }
)
WARNINGS = frozenset({"Restarting", PODS_WAITING})
"""Reasons that deserve attention whatever the status."""


@dataclass(frozen=True, slots=True)
class Transition:
    """Something new about a job that a person is told."""

    reason: str
    note: str
    is_warning: bool


def transitions(old: JobStatus, new: JobStatus) -> Iterator[Transition]:
    """Yield what changed between two statuses: conditions in their order, then new warnings.

    What was written once is not told again, whichever replica compares.
    """
    for condition in new.conditions:
        before = get_condition(old, condition.type)
        if _subject(before) != _subject(condition) and (note := sentence(new, condition, before)):
            yield Transition(condition.reason, note, _is_warning(condition))
    known = {(each.path, each.reason) for each in old.warnings}
    for warning in new.warnings:
        if (warning.path, warning.reason) not in known:
            yield Transition(warning.reason, f"{warning.path}: {warning.message}", is_warning=True)
    more = new.unlisted_warnings
    if (
        more > old.unlisted_warnings and new.warning_count > old.warning_count
    ):  # a full status lists fewer
        note = f"{more} more: `raggrpo plan` shows those of the specification"
        yield Transition("MoreWarnings", note, is_warning=True)


def trouble(condition: Condition) -> Transition:
    """Return what is told of a condition that keeps the operator from going on."""
    unknown = Condition(type=condition.type, status="Unknown", reason="")
    return Transition(condition.reason, sentence(JobStatus(), condition, unknown), is_warning=True)


def _subject(condition: Condition) -> tuple[str, str, str]:
    """Return what makes an Event new: of the message what names an attempt, or why pods wait."""
    about = condition.message if condition.type is ConditionType.RESUME_VERIFIED else ""
    if condition.reason == PODS_WAITING:
        # Of `trainer pod NAME: Unschedulable: 0/3 nodes …` the rest changes with pods and nodes.
        about = condition.message.partition(": ")[2].partition(":")[0]
    return condition.status, condition.reason, about


def _is_warning(condition: Condition) -> bool:
    bad = {"False": BAD_WHEN_FALSE, "True": BAD_WHEN_TRUE}.get(condition.status, frozenset())
    return condition.type in bad or condition.reason in WARNINGS


def render_event(body: Manifest, transition: Transition, now: datetime, instance: str) -> Manifest:
    """Return the Event about a job; `instance` is the replica that reports it."""
    metadata = body["metadata"]
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {
            "name": f"{metadata['name']}.{uuid.uuid4().hex[:16]}",
            "namespace": metadata["namespace"],
        },
        "type": "Warning" if transition.is_warning else "Normal",
        "reason": transition.reason,
        "action": "Reconcile",
        "note": transition.note.encode()[:MAX_NOTE].decode(errors="ignore"),
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
