"""The same failure at the same step again: what is changed for the next attempt, and when not to.

Steps are keyed by their number, so an attempt that fails at a step meets the same prompts and the
same random numbers there: it fails in the same way unless something is different.
"""

from collections.abc import Sequence

from raggrpo_api.status.attempts import AttemptRecord
from raggrpo_api.status.cause import Cause

MOST_NON_FINITE = 3
"""Attempts that may lose the same step to a loss that is not finite."""


def repetitions(ended: AttemptRecord, earlier: Sequence[AttemptRecord]) -> int:
    """Return how many attempts, this one included, ended for its cause at its step."""
    there = (ended.cause, ended.to_step)
    return 1 + sum((record.cause, record.to_step) == there for record in earlier)


def repetition_remark(ended: AttemptRecord, times: int) -> str:
    """Return a remark about a repeated failure, or ""."""
    if times < 2 or ended.cause is None or not ended.to_step:
        return ""
    return f" (deterministic: {times} attempts ended so after step {ended.to_step})"


def skips_step(cause: Cause, times: int) -> bool:
    """Return whether the next attempt leaves out that step's prompts and the newest checkpoint."""
    return cause is Cause.NON_FINITE and times == MOST_NON_FINITE - 1


def has_repeated_too_often(cause: Cause, times: int) -> bool:
    """Return whether another attempt would end there too."""
    return cause is Cause.NON_FINITE and times >= MOST_NON_FINITE
