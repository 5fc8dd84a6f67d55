"""Failures that repeat at the same step: when the step is skipped, and when the job fails. Pure.

Random choices are keyed by step, so an attempt that fails at a step fails there again unless
something changes.
"""

from collections.abc import Sequence

from raggrpo_api.status.attempts import AttemptRecord
from raggrpo_api.status.cause import Cause

MAX_NON_FINITE = 3
"""Attempts that may end at the same step because of a loss that is not finite."""


def repetitions(ended: AttemptRecord, earlier: Sequence[AttemptRecord]) -> int:
    """Return how many attempts, including this one, ended for its cause at its step."""
    key = (ended.cause, ended.to_step)
    return 1 + sum((record.cause, record.to_step) == key for record in earlier)


def repetition_remark(ended: AttemptRecord, times: int) -> str:
    """Return a remark about a repeated failure, or "" if it is the first."""
    if times < 2 or ended.cause is None or not ended.to_step:
        return ""
    return f" (deterministic: {times} attempts ended this way after step {ended.to_step})"


def skips_step(cause: Cause, times: int) -> bool:
    """Return whether the next attempt skips the step's prompts and the newest checkpoint."""
    return cause is Cause.NON_FINITE and times == MAX_NON_FINITE - 1


def has_repeated_too_often(cause: Cause, times: int) -> bool:
    """Return whether another attempt would fail in the same way."""
    return cause is Cause.NON_FINITE and times >= MAX_NON_FINITE
