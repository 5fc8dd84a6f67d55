"""Conditions and their transition times; the phase derived from them."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from raggrpo_api.status.conditions import ConditionType, Phase
from raggrpo_api.status.job_status import JobStatus, ProgressStatus
from raggrpo_api.status.restart_state import RestartState, WatchState
from raggrpo_api.trainer.progress import Stage
from raggrpo_operator.core.state.conditions import (
    get_condition,
    is_true,
    phase_from,
    set_condition,
)
from support.fakes.fake_runtime import T0

LATER = T0 + timedelta(minutes=5)
KIND = ConditionType.STALLED


def with_conditions(
    status: JobStatus, **conditions: tuple[bool | None, str] | bool | None
) -> JobStatus:
    """Return the status with conditions set, by their lower-case names."""
    for name, given in conditions.items():
        value, reason = given if isinstance(given, tuple) else (given, "Reason")
        status = set_condition(status, ConditionType[name.upper()], value, reason, "", T0)
    return status


def test_unset_condition_is_unknown() -> None:
    condition = get_condition(JobStatus(), KIND)
    assert (condition.status, condition.reason, condition.last_transition_time) == (
        "Unknown", "NotEvaluated", None,
    )  # fmt: skip
    assert not is_true(JobStatus(), KIND)


def test_transition_time_changes_only_with_condition_status() -> None:
    status = set_condition(JobStatus(observed_generation=3), KIND, True, "Stalled", "old", T0)
    first = get_condition(status, KIND)
    again = set_condition(status, KIND, True, "Stalled", "new", LATER)
    flipped = set_condition(again, KIND, False, "MakingProgress", "", LATER)

    assert (first.last_transition_time, first.observed_generation) == (T0, 3)
    condition = get_condition(again, KIND)
    assert (condition.message, condition.last_transition_time) == ("new", T0)
    assert get_condition(flipped, KIND).last_transition_time == LATER
    assert (is_true(again, KIND), is_true(flipped, KIND)) == (True, False)


def test_condition_first_set_to_unknown_has_transition_time() -> None:
    status = set_condition(JobStatus(), KIND, None, "NotYetReported", "", T0)
    assert get_condition(status, KIND).last_transition_time == T0


def test_equal_condition_does_not_change_status() -> None:
    status = set_condition(JobStatus(), KIND, True, "Stalled", "why", T0)
    assert set_condition(status, KIND, True, "Stalled", "why", LATER) is status


def test_conditions_are_ordered_and_messages_truncated() -> None:
    status = set_condition(JobStatus(), ConditionType.READY, True, "Ready", "x" * 5000, T0)
    status = set_condition(status, ConditionType.ACCEPTED, True, "Valid", "", T0)

    assert [each.type for each in status.conditions] == [
        ConditionType.ACCEPTED, ConditionType.READY,
    ]  # fmt: skip
    assert len(status.conditions[1].message) == 1024


RUNS = with_conditions(
    JobStatus(attempt=1, progress=ProgressStatus(stage="Training")),
    accepted=True, preflight_passed=True, cluster_ready=True, progressing=True,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "phase"),
    [
        ({}, Phase.RUNNING),
        ({"complete": True, "accepted": False, "failed": True}, Phase.SUCCEEDED),
        ({"accepted": False, "failed": True}, Phase.INVALID),
        ({"failed": True, "suspended": True}, Phase.FAILED),
        ({"suspended": (True, "Suspended"), "accepted": None}, Phase.SUSPENDED),
        ({"suspended": (True, "Queued")}, Phase.QUEUED),
        ({"accepted": None}, Phase.PENDING),
        ({"preflight_passed": None}, Phase.PREFLIGHT),
        ({"preflight_passed": False, "progressing": (False, "Restarting")}, Phase.PREFLIGHT),
        ({"progressing": (False, "Restarting"), "cluster_ready": False}, Phase.RESTARTING),
        ({"cluster_ready": False}, Phase.PROVISIONING),
        ({"complete": False, "failed": False, "suspended": False}, Phase.RUNNING),
    ],
)
def test_phase_follows_most_important_condition(changes: dict[str, Any], phase: Phase) -> None:
    assert phase_from(with_conditions(RUNS, **changes)) is phase


@pytest.mark.parametrize(("attempt", "phase"), [(0, Phase.PROVISIONING), (2, Phase.RUNNING)])
def test_phase_is_provisioning_without_attempt(attempt: int, phase: Phase) -> None:
    assert phase_from(replace(RUNS, attempt=attempt)) is phase


STARTS = [
    Stage.CONNECTING,
    Stage.LOADING_MODEL,
    Stage.READING_DATA,
    Stage.STARTING_ROLLOUT,
    Stage.WARMING_RETRIEVAL,
    Stage.FIRST_STEP,
]


@pytest.mark.parametrize("stage", ["", *Stage])
def test_phase_is_starting_until_first_step(stage: str) -> None:
    expected = Phase.STARTING if stage in ("", *STARTS) else Phase.RUNNING
    waiting = replace(
        RUNS,
        progress=ProgressStatus(stage="WaitingForEndpoint"),
        restart_state=RestartState(watch=WatchState(stage=stage)),
    )

    if stage != "WaitingForEndpoint":
        assert phase_from(replace(RUNS, progress=ProgressStatus(stage=stage))) is expected
    assert phase_from(waiting) is expected
