"""Which changes of a status may be written later. Pure."""

from dataclasses import replace

from raggrpo_api.status.attempts import AttemptRecord
from raggrpo_api.status.conditions import ConditionType, Phase
from raggrpo_api.status.job_status import JobStatus, ProgressStatus
from raggrpo_api.status.restart_state import Baseline, SpentTime, WatchState

REPORTED_CONDITIONS = frozenset(
    {
        ConditionType.PROGRESSING,
        ConditionType.CHECKPOINT_HEALTHY,
        ConditionType.RESUME_VERIFIED,
        ConditionType.SLOWING_DOWN,
        ConditionType.HOST_MEMORY_GROWING,
        ConditionType.POLICY_MISMATCH,
        ConditionType.NOT_LEARNING,
        ConditionType.STALLED,
        ConditionType.WAITING_FOR_ENDPOINT,
        ConditionType.READY,
    }
)
"""Conditions that depend on what the head of a running attempt reports."""


def differs_beyond_progress(one: JobStatus, other: JobStatus) -> bool:
    """Return whether two statuses differ in a field other than those that change with each step."""
    return _without_progress(one) != _without_progress(other)


def differs_beyond_reports(one: JobStatus, other: JobStatus) -> bool:
    """Return whether two statuses differ in a field that the head of an attempt cannot change.

    Such fields, for example the attempts and the intent to stop one, record decisions.
    """
    return _without_reports(one) != _without_reports(other)


def _without_progress(status: JobStatus) -> JobStatus:
    state, newest = status.restart_state, status.attempts[:1]
    watch = replace(
        state.watch,
        looked=None,
        step_seen=0,
        still_since=None,
        outage_seconds=0.0,
        reads_since_step=0,
    )
    return replace(
        status,
        progress=ProgressStatus(stage=status.progress.stage),
        restart_state=state.with_group(watch),
        attempts=[
            *(replace(each, to_step=0, waiting_seconds=0) for each in newest),
            *status.attempts[1:],
        ],
    )


def _without_reports(status: JobStatus) -> JobStatus:
    decided = [each for each in status.conditions if each.type not in REPORTED_CONDITIONS]
    return replace(
        status,
        phase=Phase.PENDING,
        conditions=decided,
        warnings=[],
        warning_count=0,
        progress=ProgressStatus(),
        checkpoint=None,
        best_step=None,
        best_score="",
        segments=[],
        effective_training_time_ratio="",
        waiting_time_ratio="",
        restart_state=replace(
            status.restart_state,
            watch=WatchState(),
            spent=SpentTime(),
            baseline=Baseline(),
            slowest_save_seconds=0.0,
        ),
        attempts=[
            *map(_attempt_without_reports, status.attempts[:1]),
            *status.attempts[1:],
        ],
    )


def _attempt_without_reports(record: AttemptRecord) -> AttemptRecord:
    return replace(
        record, from_step=None, to_step=0, waiting_seconds=0, skipped_checkpoints=[], in_place=[]
    )
