"""Shortening of a status that exceeds its size limit."""

import pytest

from raggrpo_api.status.attempts import AttemptRecord
from raggrpo_api.status.conditions import Condition, ConditionType, JobWarning
from raggrpo_api.status.job_status import JobStatus, PreflightStatus, ProgressStatus
from raggrpo_api.status.restart_state import Remedies, RestartState
from raggrpo_api.trainer.preflight import Check, CheckId, CheckState
from raggrpo_api.trainer.progress import CheckpointRef, Metric
from raggrpo_operator.core.state.size_limit import within_limit

WIDE = "\U0001f600"
"""Twelve bytes, once escaped."""


@pytest.mark.parametrize(
    ("letter", "length", "few"), [("x", 256, 16), ("\u00e9", 96, 4), (WIDE, 16, 0)]
)
def test_texts_and_lists_are_shortened_until_status_fits(
    letter: str, length: int, few: int
) -> None:
    numbers = [f"{n:02}" for n in range(64)]
    text, details = letter * 1024, [f"{n:02}{letter * 254}" for n in range(16)]
    record = AttemptRecord(number=2, message=text, in_place=details, skipped_checkpoints=details)
    status = JobStatus(
        conditions=[Condition(type=ConditionType.FAILED, status="True", reason="R", message=text)],
        warnings=[JobWarning(path="spec.a", reason="R", message=letter * 256)],
        attempts=[record, record],
        checkpoint=CheckpointRef(step=1, path=text),
        progress=ProgressStatus(metrics=[Metric(name=n, value="1") for n in numbers]),
        preflight=PreflightStatus(
            checks=[Check(id=CheckId.PATHS, state=CheckState.FAILED, evidence=letter * 512)]
        ),
        restart_state=RestartState(
            remedies=Remedies(
                rejected_checkpoints=[n + letter * 1022 for n in numbers],
                failures_by_node=dict.fromkeys(numbers, 1),
            )
        ),
    )

    shortened = within_limit(status)

    newest = numbers[64 - few :]
    remedies = shortened.restart_state.remedies
    assert [each[:2] for each in remedies.rejected_checkpoints] == newest
    assert all(len(each) == 1024 for each in remedies.rejected_checkpoints)
    assert [*remedies.failures_by_node] == newest
    assert [each.name for each in shortened.progress.metrics] == numbers[:few]
    assert shortened.attempts[0].in_place == [each[:length] for each in details[:few]]
    assert shortened.attempts[0].skipped_checkpoints == shortened.attempts[0].in_place
    assert (shortened.attempts[1].in_place, shortened.attempts[1].skipped_checkpoints) == ([], [])
    assert {len(each.message) for each in shortened.attempts} == {length}
    messages = [shortened.conditions[0].message, shortened.warnings[0].message]
    messages.append(shortened.preflight.checks[0].evidence)
    assert messages == [letter * length] * 3


def test_short_status_lists_are_not_shortened() -> None:
    remedies = Remedies(rejected_checkpoints=["/1", "/2"], failures_by_node={"a": 1, "b": 2})
    records = [AttemptRecord(number=n, message=WIDE * 1024) for n in range(10)]

    shortened = within_limit(
        JobStatus(attempts=records, restart_state=RestartState(remedies=remedies))
    )

    assert shortened.restart_state.remedies == remedies
    assert {len(each.message) for each in shortened.attempts} == {256}
