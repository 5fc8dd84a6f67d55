"""Keeps a status within its limit of bytes, whatever pods have reported. Pure."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from raggrpo_api.status.attempts import AttemptRecord
from raggrpo_api.status.job_status import JobStatus, status_to_json
from raggrpo_api.status.restart_state import Remedies

MAX_BYTES = 64 * 1024


def within_limit(status: JobStatus) -> JobStatus:
    """Return the status, shortened as far as it takes: the least telling parts first."""
    for shorten in SHORTENINGS:
        if size_of(status) <= MAX_BYTES:
            break
        status = shorten(status)
    return status


def size_of(status: JobStatus) -> int:
    """Return the bytes of the status as JSON in its longest form, with everything escaped."""
    return len(json.dumps(status_to_json(status)))


def _without_details_of_older_attempts(status: JobStatus) -> JobStatus:
    newest, older = status.attempts[:1], status.attempts[1:]
    bare = [replace(each, in_place=[], skipped_checkpoints=[]) for each in older]
    return replace(status, attempts=[*newest, *bare])


def _cut(status: JobStatus, *, length: int, few: int) -> JobStatus:
    """Return the status with texts of at most `length` characters, and lists of `few` entries."""

    def short(record: AttemptRecord) -> AttemptRecord:
        return replace(
            record,
            message=record.message[:length],
            in_place=[each[:length] for each in record.in_place[:few]],
            skipped_checkpoints=[each[:length] for each in record.skipped_checkpoints[:few]],
        )

    checks = [
        each.model_copy(update={"evidence": each.evidence[:length]})
        for each in status.preflight.checks
    ]
    warnings = status.warnings[: max(few, 8)]  # their number stays
    remedies = _newest(status.restart_state.remedies, few)
    return replace(
        status,
        conditions=[replace(each, message=each.message[:length]) for each in status.conditions],
        warnings=[replace(each, message=each.message[:length]) for each in warnings],
        attempts=[short(each) for each in status.attempts],
        progress=replace(status.progress, metrics=status.progress.metrics[:few]),
        preflight=replace(status.preflight, checks=checks),
        restart_state=status.restart_state.with_group(remedies),
    )


def _newest(remedies: Remedies, few: int) -> Remedies:
    """Return the remedies with their newest entries: paths and nodes are no use when cut."""
    rejected, failures = remedies.rejected_checkpoints, list(remedies.failures_by_node.items())
    return replace(
        remedies,
        rejected_checkpoints=rejected[max(0, len(rejected) - few) :],
        failures_by_node=dict(failures[max(0, len(failures) - few) :]),
    )


SHORTENINGS: tuple[Callable[[JobStatus], JobStatus], ...] = (
    _without_details_of_older_attempts,
    partial(_cut, length=256, few=16),
    partial(_cut, length=96, few=4),
    partial(_cut, length=16, few=0),
)
