"""`Finding`: the outcome of one check, before its evidence is truncated for the result."""

from collections.abc import Sequence
from dataclasses import dataclass

from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.preflight import CheckId, CheckState


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of a check, and the exit code if it failed."""

    id: CheckId
    state: CheckState
    evidence: str
    exit_code: ExitCode = ExitCode.DONE


def finding_for(
    check: CheckId,
    problems: Sequence[str],
    evidence: str,
    exit_code: ExitCode = ExitCode.PREFLIGHT_FAILED,
    *,
    is_unusual: bool = False,
) -> Finding:
    """Return a failed finding with all problems, or a passed one with `evidence` if there are none.

    With `is_unusual`, a finding without problems is a warning.
    """
    if problems:
        return Finding(check, CheckState.FAILED, "; ".join(problems), exit_code)
    return Finding(check, CheckState.WARNED if is_unusual else CheckState.PASSED, evidence)


def not_evaluated(check: CheckId, reason: str) -> Finding:
    """Return the finding of a check that could not run or had nothing to check."""
    return Finding(check, CheckState.NOT_EVALUATED, reason)
