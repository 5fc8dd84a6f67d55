"""Keeps a status within its limit of bytes, whatever pods have reported. Pure."""

import json
from collections.abc import Callable
from dataclasses import replace

from raggrpo_api.status import AttemptRecord, JobStatus, status_to_json

MAX_BYTES = 64 * 1024
USUAL_CHARACTERS = 8_000
"""With less text than this a status cannot come near the limit, so it is not measured."""
SHORT, FEW = 64, 4
"""What is left of each text and each list of a status that would be too large."""


def within_limit(status: JobStatus) -> JobStatus:
    """Return the status, its texts shortened as far as it takes: the least telling ones first."""
    if _characters(status) <= USUAL_CHARACTERS:
        return status
    for shorten in SHORTENINGS:
        if size_of(status) <= MAX_BYTES:
            break
        status = shorten(status)
    return status


def size_of(status: JobStatus) -> int:
    """Return the bytes of the status as JSON."""
    return len(json.dumps(status_to_json(status), ensure_ascii=False).encode())


def _characters(status: JobStatus) -> int:
    """Return roughly how much text of variable length the status holds."""
    remedies = status.restart_state.remedies
    of_attempts = [
        text
        for each in status.attempts
        for text in (each.message, *each.in_place, *each.skipped_checkpoints)
    ]
    others = [*remedies.mitigations, *remedies.rejected_checkpoints, *remedies.failures_by_node]
    messages = [each.message for each in status.conditions]
    evidence = [each.evidence for each in status.preflight.checks]
    return sum(map(len, [*of_attempts, *others, *messages, *evidence]))


def _without_details_of_older_attempts(status: JobStatus) -> JobStatus:
    newest, older = status.attempts[:1], status.attempts[1:]
    bare = [replace(each, in_place=[], skipped_checkpoints=[]) for each in older]
    return replace(status, attempts=[*newest, *bare])


def _with_short_attempts(status: JobStatus) -> JobStatus:
    def short(record: AttemptRecord) -> AttemptRecord:
        return replace(
            record,
            message=record.message[:SHORT],
            in_place=[each[:SHORT] for each in record.in_place[:FEW]],
            skipped_checkpoints=[each[:SHORT] for each in record.skipped_checkpoints[:FEW]],
        )

    return replace(status, attempts=[short(each) for each in status.attempts])


def _with_short_evidence(status: JobStatus) -> JobStatus:
    checks = [
        each.model_copy(update={"evidence": each.evidence[:SHORT]})
        for each in status.preflight.checks
    ]
    return replace(status, preflight=replace(status.preflight, checks=checks))


def _with_few_rejected_checkpoints(status: JobStatus) -> JobStatus:
    state = status.restart_state
    newest = state.remedies.rejected_checkpoints[-FEW:]
    remedies = replace(state.remedies, rejected_checkpoints=newest)
    return replace(status, restart_state=state.having(remedies))


def _with_short_conditions(status: JobStatus) -> JobStatus:
    conditions = [replace(each, message=each.message[: 3 * SHORT]) for each in status.conditions]
    return replace(status, conditions=conditions)


SHORTENINGS: tuple[Callable[[JobStatus], JobStatus], ...] = (
    _without_details_of_older_attempts,
    _with_short_attempts,
    _with_short_evidence,
    _with_few_rejected_checkpoints,
    _with_short_conditions,
)
