"""Notes of Events about transitions of conditions."""

import pytest

from raggrpo_api.status.attempts import AttemptRecord, Tier
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import Condition, ConditionType
from raggrpo_api.status.job_status import JobStatus, PreflightStatus
from raggrpo_api.status.restart_state import RestartState, RetryState
from raggrpo_api.trainer.preflight import Check, CheckId, CheckState
from raggrpo_api.trainer.progress import Segment
from raggrpo_operator.core.text.event_text import event_note

Kind = ConditionType
WHY = "pod x is late"


def note_of(
    kind: Kind,
    now: str,
    before: str = "Unknown",
    message: str = WHY,
    status: JobStatus | None = None,
) -> str:
    """Return the note; `now` and `before` are a status and its reason, as `True/Queued`."""
    value, _, reason = now.partition("/")
    old, _, old_reason = before.partition("/")
    changed = Condition(type=kind, status=value, reason=reason, message=message)
    return event_note(
        status or JobStatus(), changed, Condition(type=kind, status=old, reason=old_reason)
    )


@pytest.mark.parametrize(
    ("kind", "now", "before", "expected"),
    [
        (Kind.ACCEPTED, "True", "False", "The spec is valid again"),
        (Kind.ACCEPTED, "True", "Unknown", ""),
        (Kind.ACCEPTED, "False", "True", f"The spec is invalid: {WHY}"),
        (Kind.PREFLIGHT_PASSED, "False", "Unknown", f"Preflight failed: {WHY}"),
        (Kind.PREFLIGHT_PASSED, "Unknown/PodsNotReady", "Unknown",
         f"Waiting for the preflight pod: {WHY}"),
        (Kind.PREFLIGHT_PASSED, "Unknown/Running", "Unknown", ""),
        (Kind.RETRIEVER_READY, "True", "False", ""),
        (Kind.RETRIEVER_READY, "False", "Unknown", f"Waiting for managed retrievers: {WHY}"),
        (Kind.RETRIEVER_READY, "Unknown", "True", ""),
        (Kind.CLUSTER_READY, "True", "False/PodsNotReady", ""),
        (Kind.CLUSTER_READY, "True", "False/Provisioning", ""),
        (Kind.CLUSTER_READY, "False/PodsNotReady", "False",
         f"Waiting for the Ray cluster's pods: {WHY}"),
        (Kind.CLUSTER_READY, "False/Provisioning", "False", ""),
        (Kind.CHECKPOINT_HEALTHY, "True", "Unknown", f"First checkpoint saved: {WHY}"),
        (Kind.CHECKPOINT_HEALTHY, "True", "False", f"Backups succeed again: {WHY}"),
        (Kind.CHECKPOINT_HEALTHY, "False", "True",
         f"The checkpoint was saved, but its backup failed: {WHY}"),
        (Kind.RESUME_VERIFIED, "False", "True",
         f"The attempt did not resume from the newest checkpoint: {WHY}"),
        (Kind.SUSPENDED, "True/Queued", "False", f"Waiting in a queue: {WHY}"),
        (Kind.SUSPENDED, "True/Suspended", "False", f"The job is suspended: {WHY}"),
        (Kind.SUSPENDED, "False", "True", "The job is resumed"),
        (Kind.SUSPENDED, "False", "True/Queued", ""),
        (Kind.SUSPENDED, "False", "Unknown", ""),
        (Kind.COMPLETE, "True", "False", f"Complete: {WHY}"),
        (Kind.FAILED, "True/NodeLost", "False", f"Failed (NodeLost): {WHY}"),
        (Kind.COMPLETE, "False", "True", "The job is reopened"),
        (Kind.FAILED, "False", "True", "The job is reopened"),
        (Kind.FAILED, "False", "Unknown", ""),
        (Kind.STALLED, "True", "False", f"The attempt is stalled: {WHY}"),
        (Kind.STALLED, "False", "True", "The attempt makes progress again"),
        (Kind.STALLED, "False", "Unknown", ""),
        (Kind.SLOWING_DOWN, "False", "True", "Step time has recovered"),
        (Kind.SLOWING_DOWN, "False/AttemptEnded", "True", ""),
        (Kind.WAITING_FOR_ENDPOINT, "False/EndpointRecovered", "True",
         "The service is available again"),
        (Kind.WAITING_FOR_ENDPOINT, "False/AttemptEnded", "True", ""),
        (Kind.NOT_LEARNING, "True/AllTruncated", "Unknown", f"The run is not learning: {WHY}"),
        (Kind.NOT_LEARNING, "False/Learning", "True", "The run is learning again"),
        (Kind.RECONCILING, "True", "False", f"Reconciliation failed: {WHY}"),
        (Kind.READY, "True", "False", ""),
        (Kind.READY, "False", "True", ""),
    ],
)  # fmt: skip
def test_event_note_describes_transition(kind: Kind, now: str, before: str, expected: str) -> None:
    assert note_of(kind, now, before) == expected


def test_event_note_omits_colon_without_message() -> None:
    assert note_of(Kind.ACCEPTED, "False", message="") == "The spec is invalid"


@pytest.mark.parametrize(
    ("checks", "message", "expected"),
    [
        (0, "", "The spec is valid; preflight passed: 0 checks"),
        (1, "", "The spec is valid; preflight passed: 1 check"),
        (2, "8 GPUs", "The spec is valid; preflight passed: 2 checks; 8 GPUs"),
    ],
)
def test_passed_preflight_note_counts_checks(checks: int, message: str, expected: str) -> None:
    results = [Check(id=CheckId.MODEL_FAMILY, state=CheckState.PASSED)] * checks
    status = JobStatus(preflight=PreflightStatus(checks=results))
    assert note_of(Kind.PREFLIGHT_PASSED, "True", message=message, status=status) == expected


@pytest.mark.parametrize(
    ("tier", "reason", "expected"),
    [
        (Tier.FIRST, "Verified", "Attempt 3 started on a new cluster from step 40"),
        (Tier.NEW_CLUSTER, "Verified", "Attempt 3 started on a new cluster from step 40"),
        (Tier.WARM_CLUSTER, "Verified", "Attempt 3 started on the warm cluster from step 40"),
        (
            Tier.WARM_CLUSTER,
            "OlderCheckpoint",
            f"Attempt 3 started on the warm cluster from step 40, an older checkpoint: {WHY}",
        ),
    ],
)
def test_started_attempt_note_has_cluster_and_step(tier: Tier, reason: str, expected: str) -> None:
    newest = AttemptRecord(number=3, tier=tier, from_step=40)
    older = AttemptRecord(number=2, from_step=20)
    status = JobStatus(attempt=3, attempts=[newest, older, AttemptRecord(number=1, from_step=0)])
    assert note_of(Kind.RESUME_VERIFIED, f"True/{reason}", status=status) == expected


@pytest.mark.parametrize(
    ("reason", "message", "expected"),
    [
        ("Restarting", WHY, f"Attempt 3 ended and will be restarted: {WHY}"),
        ("UpgradeRequired", WHY, f"The image does not support this job: {WHY}"),
        (
            "TargetRaised",
            WHY,
            f"The target was raised during the attempt; another attempt follows: {WHY}",
        ),
        ("Stalled", WHY, f"Stopping attempt 3 (Stalled): {WHY}"),
        ("NodeLost", WHY, ""),
        ("Complete", WHY, ""),
    ],
)
def test_stopped_job_note_has_reason(reason: str, message: str, expected: str) -> None:
    stalled = RestartState(retry=RetryState(intent=Cause.STALLED))
    status = JobStatus(attempt=3, restart_state=stalled)
    assert note_of(Kind.PROGRESSING, f"False/{reason}", "True", message, status) == expected


@pytest.mark.parametrize(
    ("from_step", "expected"),
    [
        (40, "from step 40, with changed values: rollout.n: 5 → 3"),
        (44, "from step 44"),
    ],
)
def test_started_attempt_note_has_values_when_segment_starts(from_step: int, expected: str) -> None:
    status = JobStatus(
        attempt=3,
        attempts=[AttemptRecord(number=3, from_step=from_step)],
        segments=[Segment(first_step=41, changes=["rollout.n: 5 → 3"])],
    )
    note = note_of(Kind.RESUME_VERIFIED, "True/Verified", status=status)
    assert note == f"Attempt 3 started on a new cluster {expected}"
