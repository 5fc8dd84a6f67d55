"""What is left of a status that pods and failures have made too large."""

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
def test_texts_and_lists_get_as_short_as_it_takes(letter: str, length: int, few: int) -> None:
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

    found = within_limit(status)

    newest = numbers[64 - few :]
    remedies = found.restart_state.remedies
    assert [each[:2] for each in remedies.rejected_checkpoints] == newest
    assert all(len(each) == 1024 for each in remedies.rejected_checkpoints)
    assert [*remedies.failures_by_node] == newest
    assert [each.name for each in found.progress.metrics] == numbers[:few]
    assert found.attempts[0].in_place == [each[:length] for each in details[:few]]
    assert found.attempts[0].skipped_checkpoints == found.attempts[0].in_place
    assert (found.attempts[1].in_place, found.attempts[1].skipped_checkpoints) == ([], [])
    assert {len(each.message) for each in found.attempts} == {length}
    told = [found.conditions[0].message, found.warnings[0].message]
    told.append(found.preflight.checks[0].evidence)
    assert told == [letter * length] * 3


def test_short_lists_are_kept() -> None:
    remedies = Remedies(rejected_checkpoints=["/1", "/2"], failures_by_node={"a": 1, "b": 2})
    records = [AttemptRecord(number=n, message=WIDE * 1024) for n in range(10)]

    found = within_limit(JobStatus(attempts=records, restart_state=RestartState(remedies=remedies)))

    assert found.restart_state.remedies == remedies
    assert {len(each.message) for each in found.attempts} == {256}
