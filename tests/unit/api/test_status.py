"""JSON of the status, and rejection of unknown fields in edits."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from pydantic import ValidationError

from raggrpo_api.fields.base import format_time
from raggrpo_api.job import RagGrpoJob
from raggrpo_api.status.attempts import AttemptRecord
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.job_status import (
    JobStatus,
    Pinned,
    sparse_status,
    status_from_json,
    status_to_json,
)
from raggrpo_api.status.restart_state import (
    LaunchState,
    Remedies,
    RestartState,
    RetryState,
    WatchState,
)
from raggrpo_operator.core.spec.parse import parse_job
from support.builders.operator.jobs import make_job, make_raw_job

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
FLAT = [
    *("nextRetryTime", "intent", "warmFailuresInARow", "preflightLosses", "endsInARow"),
    *("savedStep", "mitigations", "skippedSteps", "rejectedCheckpoints", "failuresByNode"),
    *("nodeFailedAt", "nodeFailedStep"),
    *("activeSeconds", "downSeconds", "waitingSeconds", "keptSeconds"),
    *("countedSince", "countedSeconds"),
    *("clusterSince", "tries", "waitingSince"),
    *("looked", "watchedSince", "unreadSince", "stage", "stepSeen", "stillSince"),
    *("outageSince", "outageStep", "outageSeconds"),
    *("readsSinceStep", "slowestSaveSeconds", "baseline"),
]
STATUS = JobStatus(
    start_time=NOON,
    attempts=[AttemptRecord(number=1, started=NOON)],
    pinned=Pinned(image="trainer:1", ray_version="2.60.0"),
    restart_state=RestartState(
        retry=RetryState(intent=Cause.STALLED),
        remedies=Remedies(mitigations=["WorkersHalved"]),
        launch=LaunchState(cluster_since=NOON, tries=2),
        watch=WatchState(still_since=NOON + timedelta(minutes=1), stage="Training"),
        slowest_save_seconds=4.2,
    ),
)


def test_restart_state_is_flat_in_json() -> None:
    state = status_to_json(STATUS)["restartState"]

    assert list(state) == FLAT
    assert (state["clusterSince"], state["waitingSince"]) == ("2026-11-21T12:00:00Z", "")
    assert (state["intent"], state["tries"], state["slowestSaveSeconds"]) == ("Stalled", 2, 4.2)


@pytest.mark.parametrize("to_json", [status_to_json, sparse_status])
def test_status_round_trips_through_json(to_json: Callable[[JobStatus], Any]) -> None:
    raw = to_json(STATUS)
    job = parse_job(make_raw_job() | {"status": raw})

    assert status_from_json(raw) == STATUS
    assert isinstance(job, RagGrpoJob)
    assert job.status == STATUS


def test_sparse_status_has_only_specified_zeros() -> None:
    status = replace(STATUS, best_step=0, attempts=[AttemptRecord(number=1, from_step=0)])

    raw = sparse_status(status)

    assert status_from_json(raw) == status
    assert sorted(zero_paths(raw)) == ["attempts.fromStep", "bestStep"]
    assert raw["attempts"] == [{"number": 1, "tier": "First", "cluster": 1, "fromStep": 0}]


def zero_paths(value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of zeros, empty values and nulls."""
    if value in (None, 0, "", [], {}):
        yield path
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from zero_paths(each, f"{path}.{name}".lstrip("."))
    elif isinstance(value, list):
        for each in value:
            yield from zero_paths(each, path)


def test_pinned_values_ignore_unknown_keys() -> None:
    assert status_to_json(JobStatus())["pinned"] == {}
    assert status_to_json(STATUS)["pinned"] == {"image": "trainer:1", "rayVersion": "2.60.0"}
    older = status_from_json({"pinned": {"precision": "FP32", "schemaDigest": "of old"}})
    assert older.pinned == Pinned(precision="FP32")


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("", None),
        ("2026-11-21T12:00:00Z", NOON),
        ("2026-11-21T13:00:00.900+01:00", NOON),
    ],
)
def test_status_times_are_truncated_to_whole_seconds(text: str, time: datetime | None) -> None:
    assert status_from_json({"startTime": text}).start_time == time
    later = NOON.astimezone(timezone(timedelta(hours=1))) + timedelta(milliseconds=900)
    assert replace(JobStatus(), start_time=later) == JobStatus(start_time=NOON)
    assert format_time(later) == "2026-11-21T12:00:00Z"


@pytest.mark.parametrize("value", ["noon", "2026-11-21T12:00:00", 7])
def test_invalid_time_is_rejected(value: object) -> None:
    with pytest.raises(ValidationError):
        status_from_json({"startTime": value})


def test_replace_rejects_unknown_field_and_overlong_list() -> None:
    misspelt: Any = {"attemps": []}
    with pytest.raises(ValidationError, match="attemps"):
        replace(STATUS, **misspelt)
    too_many = [AttemptRecord(number=n) for n in range(11)]
    with pytest.raises(ValidationError):
        replace(STATUS, attempts=too_many)


def test_model_copy_rejects_unknown_field() -> None:
    with pytest.raises(TypeError, match="JobSpec has no field suspendd"):
        make_job().spec.model_copy(update={"suspendd": True})


BEYOND: dict[str, dict[str, Any]] = {
    "a checkpoint": {"checkpoint": {"step": -1, "path": "/x"}},
    "a huge checkpoint": {"checkpoint": {"step": 10**15, "path": "/x" * 5000}},
    "facts": {"preflight": {"facts": {"parameters": -5, "rayVersion": "x" * 500}}},
    "pins": {"pinned": {"precision": "x" * 100_000, "z": "y" * 1_000_000}},
    "a retry": {"retry": "again" * 50_000},
    "words": {"attempts": [{"number": 1, "inPlace": ["\x1b" + "x" * 100_000] * 16}]},
    "stages": {"restartState": {"baseline": {"secondsByStage": {"a b" * 100: 1}}}},
}


@pytest.mark.parametrize("what", BEYOND)
def test_invalid_or_oversized_stored_status_values_are_discarded(what: str) -> None:
    status = status_from_json({"attempt": 3, **BEYOND[what]})

    assert status.attempt == 3
    assert len(json.dumps(status_to_json(status))) < 16 * 1024
    assert status.checkpoint is None
    assert status.preflight.known_facts is None


@pytest.mark.parametrize(
    ("status", "path"),
    [
        ({"completionTime": "9999-12-31T23:59:59Z"}, "status.completionTime"),
        ({"completionTime": "0001-01-01T00:00:00+14:00"}, "status.completionTime"),
        ({"completionTime": "1999-12-31T23:59:59Z"}, "status.completionTime"),
        ({"attempts": [{"number": 1, "seconds": 10**12}]}, "status.attempts[0].seconds"),
        (
            {"attempts": [{"number": 1, "started": "3000-01-01T00:00:00Z"}]},
            "status.attempts[0].started",
        ),
        ({"restartState": {"outageSeconds": 1e300}}, "status.restartState.watch.outageSeconds"),
        (
            {"restartState": {"countedSeconds": -(10**18)}},
            "status.restartState.spent.countedSeconds",
        ),
    ],
)
def test_times_and_durations_out_of_range_are_rejected(status: dict[str, Any], path: str) -> None:
    violations = parse_job(make_raw_job() | {"status": status})
    assert isinstance(violations, tuple)
    assert [each.path for each in violations] == [path]
