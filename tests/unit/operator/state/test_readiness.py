from datetime import UTC, datetime

import pytest

from raggrpo_api.status.attempts import AttemptRecord
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import ConditionType as Kind
from raggrpo_api.status.job_status import JobStatus
from raggrpo_operator.core.state.conditions import get_condition, put_condition
from raggrpo_operator.core.state.readiness import with_ready

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
TRAINS = (Kind.PROGRESSING, True, "Training")
RESTARTS = (Kind.PROGRESSING, False, "Restarting")
PROVISIONS = (Kind.CLUSTER_READY, False, "Provisioning")
Setting = tuple[Kind, bool | None, str]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([], ("False", "NotReady")),
        ([(Kind.ACCEPTED, False, "NotDivisible")], ("False", "NotDivisible")),
        ([(Kind.PREFLIGHT_PASSED, None, "Unschedulable")], ("False", "Unschedulable")),
        ([(Kind.RETRIEVER_READY, False, "ImagePullFailed")], ("False", "ImagePullFailed")),
        ([(Kind.PROGRESSING, True, "Starting"), PROVISIONS], ("True", "Provisioning")),
        (
            [(Kind.PROGRESSING, True, "Starting"), (Kind.CLUSTER_READY, False, "QuotaExceeded")],
            ("False", "QuotaExceeded"),
        ),
        ([TRAINS, (Kind.CLUSTER_READY, True, "Ready")], ("True", "Training")),
        ([TRAINS, (Kind.SLOWING_DOWN, True, "StepTimeIncreased")], ("True", "StepTimeIncreased")),
        ([TRAINS, (Kind.CHECKPOINT_HEALTHY, False, "BackupFailed")], ("True", "BackupFailed")),
        ([TRAINS, (Kind.RECONCILING, True, "AccessDenied")], ("True", "AccessDenied")),
        ([TRAINS, (Kind.SUSPENDED, True, "Queued")], ("False", "Queued")),
        ([RESTARTS, (Kind.CLUSTER_READY, True, "Ready")], ("False", "WorkerLost")),
        ([RESTARTS, (Kind.FAILED, True, "VolumeFull")], ("False", "VolumeFull")),
        ([RESTARTS, (Kind.COMPLETE, True, "TargetReached")], ("True", "TargetReached")),
        ([TRAINS, (Kind.NOT_LEARNING, True, "AllTruncated")], ("True", "AllTruncated")),
        (
            [
                (Kind.PROGRESSING, False, "Complete"),
                (Kind.COMPLETE, True, "TargetReached"),
                (Kind.NOT_LEARNING, True, "AllTruncated"),
            ],
            ("True", "AllTruncated"),
        ),
        (
            [(Kind.SUSPENDED, True, "Suspended"), (Kind.NOT_LEARNING, True, "AllTruncated")],
            ("False", "Suspended"),
        ),
    ],
)
def test_ready_has_reason_of_most_significant_condition(
    settings: list[Setting], expected: tuple[str, str]
) -> None:
    status = JobStatus(attempts=[AttemptRecord(number=1, cause=Cause.WORKER_LOST)])
    for kind, value, reason in settings:
        status = put_condition(status, kind, value, reason, "", NOW)

    ready = get_condition(with_ready(status, NOW), Kind.READY)

    assert (ready.status, ready.reason) == expected
