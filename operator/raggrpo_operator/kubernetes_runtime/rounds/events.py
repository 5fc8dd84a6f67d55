"""Kubernetes Events of a job: condition transitions and new warnings. Pure."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from raggrpo_api import names
from raggrpo_api.status.conditions import Condition, ConditionType
from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.status.reasons import POD_START_REASONS, ConditionReason, WarningReason
from raggrpo_operator.core.state.conditions import get_condition
from raggrpo_operator.core.text.event_text import event_note
from raggrpo_operator.kube.client import Manifest

MAX_NOTE = 1024
"""Maximum bytes of a note, as limited by the API server."""
WARNING_WHEN_FALSE = frozenset(
    {
        ConditionType.ACCEPTED,
        ConditionType.SOURCES_STAGED,
        ConditionType.PREFLIGHT_PASSED,
        ConditionType.RESUME_VERIFIED,
        ConditionType.CHECKPOINT_HEALTHY,
        ConditionType.RESULT_PUSHED,
    }
)
WARNING_WHEN_TRUE = frozenset(
    {
        ConditionType.FAILED,
        ConditionType.STALLED,
        ConditionType.WAITING_FOR_ENDPOINT,
        ConditionType.SLOWING_DOWN,
        ConditionType.HOST_MEMORY_GROWING,
        ConditionType.POLICY_MISMATCH,
        ConditionType.NOT_LEARNING,
        ConditionType.RECONCILING,
    }
)
WARNING_REASONS = POD_START_REASONS | {ConditionReason.RESTARTING}
"""Reasons that make an Event a warning, regardless of the condition's status."""


@dataclass(frozen=True, slots=True)
class Transition:
    """The content of an Event."""

    reason: str
    note: str
    is_warning: bool


def transitions(old: JobStatus, new: JobStatus) -> Iterator[Transition]:
    """Yield the Events for the change from `old` to `new`: conditions in order, then new warnings.

    The Events depend only on the two statuses, so a restarted operator posts no duplicates.
    """
    for condition in new.conditions:
        before = get_condition(old, condition.type)
        is_new = (before.status, before.reason) != (condition.status, condition.reason)
        if condition.type is ConditionType.RESUME_VERIFIED:
            is_new |= _resumed_attempt(new) not in (None, _resumed_attempt(old))
        if is_new and (note := event_note(new, condition, before)):
            yield Transition(condition.reason, note, _is_warning(condition))
    known = {(each.path, each.reason) for each in old.warnings}
    for warning in new.warnings:
        if (warning.path, warning.reason) not in known:
            yield Transition(warning.reason, f"{warning.path}: {warning.message}", is_warning=True)
    unlisted = new.unlisted_warnings
    # A shortened status lists fewer warnings, although no warning is new.
    if unlisted > old.unlisted_warnings and new.warning_count > old.warning_count:
        note = f"{unlisted} more: `raggrpo plan` lists those of the spec"
        yield Transition(WarningReason.MORE_WARNINGS, note, is_warning=True)


def error_event(condition: Condition) -> Transition:
    """Return the Event for a condition that reports an internal error."""
    unknown = Condition(type=condition.type, status="Unknown", reason="")
    return Transition(
        condition.reason, event_note(JobStatus(), condition, unknown), is_warning=True
    )


def other_operator_event(holder: str, instance: str) -> Transition:
    """Return the Event for a job in a namespace that another operator holds."""
    note = (
        f"Operator {holder} reconciles the jobs of this namespace; {instance} does not: uninstall "
        "one of them, or set its watchNamespaces"
    )
    return Transition(ConditionReason.OTHER_OPERATOR, note, is_warning=True)


def _resumed_attempt(status: JobStatus) -> int | None:
    """Return the number of the newest attempt, or None if its first step is unknown."""
    newest = next(iter(status.attempts), None)
    return newest.number if newest is not None and newest.from_step is not None else None


def _is_warning(condition: Condition) -> bool:
    types = {"False": WARNING_WHEN_FALSE, "True": WARNING_WHEN_TRUE}.get(
        condition.status, frozenset()
    )
    return condition.type in types or condition.reason in WARNING_REASONS


def render_event(body: Manifest, transition: Transition, now: datetime, instance: str) -> Manifest:
    """Return the manifest of an Event; `instance` is the name of the reporting replica."""
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
