import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raggrpo_api.status.attempts import AttemptRecord
from raggrpo_api.status.conditions import Condition, ConditionType, JobWarning
from raggrpo_api.status.job_status import (
    JobStatus,
    Pinned,
    PreflightStatus,
    ProgressStatus,
    status_from_json,
    status_to_json,
)
from raggrpo_api.status.restart_state import Baseline, Remedies, RestartState
from raggrpo_api.trainer.preflight import Check, CheckId, CheckState
from raggrpo_api.trainer.progress import CheckpointRef, Metric
from raggrpo_operator.core.sizing.size import size
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.core.state.size_limit import MAX_BYTES, json_size, within_limit
from support.builders.operator.jobs import KNOWN_TINY, make_job

LETTERS = ["x", '"', "\u00e9", "\u6f22", "\U0001f600"]
ENDPOINTS = [{"name": f"{n}{'e' * 40}", "managed": {"corpus": "/mnt/runs/c"}} for n in range(8)]
RETRIEVING = {"retrieval": {"mode": "Search", "endpoints": ENDPOINTS}}


@pytest.mark.row("E3")
@given(
    letter=st.sampled_from(LETTERS),
    attempts=st.integers(0, 10),
    details=st.integers(0, 16),
    entries=st.integers(0, 64),
    length=st.integers(0, 1024),
)
@settings(max_examples=60, deadline=None)
def test_shortened_status_fits_size_limit(
    letter: str, attempts: int, details: int, entries: int, length: int
) -> None:
    text = letter * length
    record = AttemptRecord(
        number=1,
        message=text,
        in_place=[text[:256]] * details,
        skipped_checkpoints=[text[:256]] * details,
    )
    check = Check(id=CheckId.PATHS, state=CheckState.FAILED, evidence=text[:512])
    remedies = Remedies(
        rejected_checkpoints=[text] * entries,
        failures_by_node={f"{n}-{'n' * 250}": 1 for n in range(entries)},
    )
    metric = Metric(name=text[:64], value=text[:64])
    status = JobStatus(
        conditions=[
            Condition(type=kind, status="True", reason="R" * 64, message=text)
            for kind in list(ConditionType)[:16]
        ],
        warnings=[
            JobWarning(path=f"{n}{text}"[:128], reason="R" * 64, message=text[:512])
            for n in range(32)
        ],
        attempts=[record] * attempts,
        checkpoint=CheckpointRef(step=10**9, path=text, time=text[:256]),
        progress=ProgressStatus(metrics=[metric] * entries, last_updated_time=text[:256]),
        preflight=PreflightStatus(checks=[check] * len(CheckId), facts=KNOWN_TINY),
        pinned=Pinned(image="i" * 512, precision=text[:32], attention=text[:32]),
        sizing=size(resolve(make_job(RETRIEVING), KNOWN_TINY).spec, KNOWN_TINY),
        restart_state=RestartState(
            remedies=remedies,
            baseline=Baseline(seconds_by_stage={f"{n:032}": 1e8 for n in range(16)}),
        ),
    )

    fitted = within_limit(status)

    assert json_size(fitted) <= MAX_BYTES
    assert status_from_json(json.loads(json.dumps(status_to_json(fitted)))) == fitted
    assert within_limit(fitted) == fitted
    assert fitted.warnings[0].path == status.warnings[0].path
    if json_size(status) <= MAX_BYTES:
        assert fitted == status


@pytest.mark.parametrize(("conditions", "num_kept"), [(0, 32), (2, 16), (10, 8)])
def test_oversized_status_keeps_first_warnings(conditions: int, num_kept: int) -> None:
    long = "\U0001f600" * 1000
    conditions_set = [
        Condition(type=kind, status="True", reason="R", message=long)
        for kind in list(ConditionType)[:conditions]
    ]
    warnings = [JobWarning(path=f"spec.{n}", reason="R", message="w" * 512) for n in range(32)]
    attempts = [AttemptRecord(number=1, message=long)] * conditions
    status = JobStatus(
        warnings=warnings, warning_count=32, attempts=attempts, conditions=conditions_set
    )

    fitted = within_limit(status)
    assert [each.path for each in fitted.warnings] == [f"spec.{n}" for n in range(num_kept)]
    assert fitted.warning_count == 32


def test_status_at_size_limit_is_unchanged() -> None:
    full = ["x" * 256] * 16

    def with_letters(count: int) -> JobStatus:
        long = AttemptRecord(number=1, message="x" * 512, in_place=full, skipped_checkpoints=full)
        lengths = [count // 7] * 6 + [count - 6 * (count // 7)]
        return JobStatus(attempts=[replace(long, message="x" * each) for each in lengths])

    fitting = with_letters(700 + MAX_BYTES - json_size(with_letters(700)))

    assert json_size(fitting) == MAX_BYTES == 65_536
    assert within_limit(fitting) == fitting


def test_details_of_old_attempts_are_truncated_first() -> None:
    newest = AttemptRecord(number=10, message="short", in_place=["kept"])
    older = AttemptRecord(number=9, message="also kept", in_place=["x" * 256] * 16)
    status = JobStatus(attempts=[newest, *[older] * 9])
    status = replace(
        status, attempts=[newest, *[replace(older, in_place=["\U0001f600" * 256] * 16)] * 9]
    )

    fitted = within_limit(status)

    assert fitted.attempts[0] == newest
    assert {each.message for each in fitted.attempts[1:]} == {"also kept"}
    assert not any(each.in_place for each in fitted.attempts[1:])
