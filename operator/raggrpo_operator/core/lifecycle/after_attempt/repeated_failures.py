"""Repeated failures at the same step: when to skip the step, and when to fail the job. Pure.

Random numbers are seeded by step, so an attempt that repeats a failed step fails again unless its
configuration or its cluster changes.
"""

from collections.abc import Sequence

from raggrpo_api.status.attempts import AttemptRecord
from raggrpo_api.status.cause import Cause

MAX_NON_FINITE = 3
"""Number of attempts with a non-finite loss at the same step after which the job fails."""


def repetitions(ended: AttemptRecord, earlier: Sequence[AttemptRecord]) -> int:
    """Return the number of attempts, including `ended`, that ended with the same cause and step."""
    key = (ended.cause, ended.to_step)
    return 1 + sum((record.cause, record.to_step) == key for record in earlier)


def repetition_remark(ended: AttemptRecord, times: int) -> str:
    """Return a remark that the failure is repeated, or "" for the first failure of its kind."""
    if times < 2 or ended.cause is None or not ended.to_step:
        return ""
    return f" (deterministic: {times} attempts ended this way after step {ended.to_step})"


def skips_step(cause: Cause, times: int) -> bool:
    """Return whether to skip the step's prompts and to reject the newest checkpoint."""
    return cause is Cause.NON_FINITE and times == MAX_NON_FINITE - 1


def has_repeated_too_often(cause: Cause, times: int) -> bool:
    """Return whether the failure has repeated so often that another attempt would fail too."""
    return cause is Cause.NON_FINITE and times >= MAX_NON_FINITE
