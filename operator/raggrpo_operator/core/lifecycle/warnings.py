"""Warnings about a job from rules, preflight checks and its checkpoint interval. Pure.

Warnings are updated only in rounds that write the status for another reason.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import sqrt

from raggrpo_api.fields.text import one_line
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import JobWarning
from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.status.reasons import WarningReason
from raggrpo_api.trainer.preflight import Check, CheckId, CheckState
from raggrpo_operator.core.spec.violation import Severity, Violation

from .round import Round

MAX_LISTED = 32
"""Maximum number of warnings in the status."""
SAVING_CAUSES = frozenset({Cause.PREEMPTED, Cause.SUSPENDED, Cause.DEGRADED, Cause.SUPERSEDED})
"""Causes of attempts whose driver saves before it exits, so that no steps are lost."""
MAX_LENGTH = 512
"""Maximum characters of a warning's message."""
FIELD_OF_CHECK = {
    CheckId.DATA_COLUMNS: "spec.data.columns",
    CheckId.RETRIEVAL_REACHABLE: "spec.retrieval.endpoints",
    CheckId.SAMPLE_LENGTHS: "spec.data",
    CheckId.TOKENIZER: "spec.model.path",
}
INTERVAL_TOLERANCE = 2.0
"""Factor by which the checkpoint interval may differ from the optimum without a warning."""


def update_warnings(this: Round, violations: Iterable[Violation]) -> None:
    """Set the warnings in the status: from rules, preflight and the checkpoint interval."""
    warnings = [_rule_warning(each) for each in violations if each.severity is Severity.WARNING]
    warnings += [
        _check_warning(c) for c in this.status.preflight.checks if c.state is CheckState.WARNED
    ]
    _set_warnings(this, [*_interval_warning(this.spec, this.status), *warnings])


def update_interval_warning(this: Round) -> None:
    """Update the warning about the checkpoint interval, and leave the other warnings unchanged."""
    others = [
        each for each in this.status.warnings if each.reason != WarningReason.CHECKPOINT_INTERVAL
    ]
    _set_warnings(
        this, [*_interval_warning(this.spec, this.status), *others], this.status.unlisted_warnings
    )


def best_interval(save_seconds: float, seconds_between_failures: float) -> float:
    """Return the checkpoint interval, in seconds, that minimizes the lost time.

    Uses Young 1974, "A first order approximation to the optimum checkpoint interval", with the
    correction of Daly 2006, "A higher order estimate of the optimum checkpoint interval for
    restart dumps", for saves that are long relative to the time between failures.
    """
    if save_seconds >= 2 * seconds_between_failures:
        return seconds_between_failures
    ratio = save_seconds / (2 * seconds_between_failures)
    young = sqrt(2 * save_seconds * seconds_between_failures)
    return young * (1 + sqrt(ratio) / 3 + ratio / 9) - save_seconds


def _interval_warning(spec: JobSpec, status: JobStatus) -> Iterator[JobWarning]:
    state = status.restart_state
    step_seconds = status.progress.seconds_per_step
    every, save = spec.checkpoint.every_steps, state.slowest_save_seconds
    by_cause = status.restarts.by_cause
    failures = sum(n for cause, n in by_cause.items() if cause not in SAVING_CAUSES)
    active = state.spent.active_seconds
    if not (every and save and failures and active and step_seconds):
        return
    best = max(1, round(best_interval(save, active / failures) / step_seconds))
    if best / INTERVAL_TOLERANCE <= every <= best * INTERVAL_TOLERANCE:
        return
    failed = f"{failures} failure{'s' if failures > 1 else ''} in {active} s of training"
    message = f"{every}: saving takes {save:g} s, a step {step_seconds:g} s, {failed}"
    remedy = f"checkpoint.everySteps: {best}"
    yield JobWarning(
        path="spec.checkpoint.everySteps",
        reason=WarningReason.CHECKPOINT_INTERVAL,
        message=f"{message} → {remedy}",
    )


def _set_warnings(this: Round, warnings: Sequence[JobWarning], unlisted: int = 0) -> None:
    unique = list({(each.path, each.reason): each for each in warnings}.values())
    count = len(unique) + unlisted
    this.status = replace(this.status, warnings=unique[:MAX_LISTED], warning_count=count)


def _check_warning(check: Check) -> JobWarning:
    path = FIELD_OF_CHECK.get(check.id, "spec")
    return JobWarning(path=path, reason=str(check.id), message=one_line(check.evidence, MAX_LENGTH))


def _rule_warning(violation: Violation) -> JobWarning:
    remedy = f" → {one_line(violation.remedy, MAX_LENGTH // 2)}"
    message = one_line(violation.message, MAX_LENGTH - len(remedy)) + remedy
    return JobWarning(
        path=one_line(violation.path, 128), reason=str(violation.reason), message=message
    )
