"""Shorten a status that exceeds its size limit: pods may report texts of any length. Pure."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from raggrpo_api.status.attempts import AttemptRecord
from raggrpo_api.status.job_status import JobStatus, status_to_json
from raggrpo_api.status.restart_state import Remedies

MAX_BYTES = 64 * 1024
"""Maximum bytes of a status as JSON."""


def within_limit(status: JobStatus) -> JobStatus:
    """Return the status, shortened until it fits, starting with the least important fields."""
    for shorten in SHORTENINGS:
        if json_size(status) <= MAX_BYTES:
            break
        status = shorten(status)
    return status


def json_size(status: JobStatus) -> int:
    """Return the size of the status in bytes, as JSON with all non-ASCII characters escaped."""
    return len(json.dumps(status_to_json(status)))


def _without_details_of_older_attempts(status: JobStatus) -> JobStatus:
    newest = status.attempts[:1]
    older = status.attempts[1:]
    bare = [replace(each, in_place=[], skipped_checkpoints=[]) for each in older]
    return replace(status, attempts=[*newest, *bare])


def _shortened(status: JobStatus, *, length: int, count: int) -> JobStatus:
    """Return the status with texts and lists cut to `length` characters and `count` entries."""

    def shortened_attempt(record: AttemptRecord) -> AttemptRecord:
        return replace(
            record,
            message=record.message[:length],
            in_place=[each[:length] for each in record.in_place[:count]],
            skipped_checkpoints=[each[:length] for each in record.skipped_checkpoints[:count]],
        )

    checks = [
        each.model_copy(update={"evidence": each.evidence[:length]})
        for each in status.preflight.checks
    ]
    warnings = status.warnings[: max(count, 8)]  # `warning_count` stays unchanged
    remedies = _newest(status.restart_state.remedies, count)
    return replace(
        status,
        conditions=[replace(each, message=each.message[:length]) for each in status.conditions],
        warnings=[replace(each, message=each.message[:length]) for each in warnings],
        attempts=[shortened_attempt(each) for each in status.attempts],
        progress=replace(status.progress, metrics=status.progress.metrics[:count]),
        preflight=replace(status.preflight, checks=checks),
        restart_state=status.restart_state.with_group(remedies),
    )


def _newest(remedies: Remedies, count: int) -> Remedies:
    """Return the remedies with only the newest `count` entries of each list.

    The entries themselves are paths and node names, which must not be shortened.
    """
    rejected = remedies.rejected_checkpoints
    failures = list(remedies.failures_by_node.items())
    return replace(
        remedies,
        rejected_checkpoints=rejected[max(0, len(rejected) - count) :],
        failures_by_node=dict(failures[max(0, len(failures) - count) :]),
    )


SHORTENINGS: tuple[Callable[[JobStatus], JobStatus], ...] = (
    _without_details_of_older_attempts,
    partial(_shortened, length=256, count=16),
    partial(_shortened, length=96, count=4),
    partial(_shortened, length=16, count=0),
)
