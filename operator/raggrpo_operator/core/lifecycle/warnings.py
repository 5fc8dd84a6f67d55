"""A job's warnings: of the rules, of preflight, and of its checkpoint interval. Pure.

They change only in rounds that write the status for another reason, so they cost no write.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import sqrt

from raggrpo_api.fields.text import one_line
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import JobWarning
from raggrpo_api.status.reasons import WarningReason
from raggrpo_api.trainer.preflight import Check, CheckId, CheckState
from raggrpo_operator.core.spec.violation import Severity, Violation

from .round import Round

MAX_LISTED = 32
SAVED_FIRST = frozenset({Cause.PREEMPTED, Cause.SUSPENDED, Cause.DEGRADED, Cause.SUPERSEDED})
"""Ends before which the driver saves: they lose no steps, whatever the interval."""
LONGEST = 512
"""Characters of a warning."""
FIELD_OF_CHECK = {CheckId.RETRIEVAL_REACHABLE: "spec.retrieval.endpoints"}
FAR_OFF = 2.0
"""Factor between two intervals that matters: the optimum is flat."""


def update_warnings(this: Round, found: Iterable[Violation]) -> None:
    """List what the job's own failures advise beside what the rules and preflight warn of."""
    told = [_warning(each) for each in found if each.severity is Severity.WARNING]
    told += [_of_check(c) for c in this.status.preflight.checks if c.state is CheckState.WARNED]
    _list(this, [*_interval(this), *told])


def update_interval_warning(this: Round) -> None:
    """Compare the checkpoint interval with what saving takes and how often attempts failed."""
    others = [
        each for each in this.status.warnings if each.reason != WarningReason.CHECKPOINT_INTERVAL
    ]
    _list(this, [*_interval(this), *others], this.status.unlisted_warnings)


def best_interval(save_seconds: float, seconds_between_failures: float) -> float:
    """Return the seconds of training between two checkpoints that lose the least time.

    Young 1974, "A first order approximation to the optimum checkpoint interval", with the
    correction of Daly 2006, "A higher order estimate of the optimum checkpoint interval for
    restart dumps", for saves that are not short compared with the time between failures.
    """
    if save_seconds >= 2 * seconds_between_failures:
        return seconds_between_failures
    ratio = save_seconds / (2 * seconds_between_failures)
    young = sqrt(2 * save_seconds * seconds_between_failures)
    return young * (1 + sqrt(ratio) / 3 + ratio / 9) - save_seconds


def _interval(this: Round) -> Iterator[JobWarning]:
    state, step_seconds = this.state, this.status.progress.seconds_per_step
    every, save = this.spec.checkpoint.every_steps, state.slowest_save_seconds
    by_cause = this.status.restarts.by_cause
    failures = sum(n for cause, n in by_cause.items() if cause not in SAVED_FIRST)
    active = state.spent.active_seconds
    if not (every and save and failures and active and step_seconds):
        return
    best = max(1, round(best_interval(save, active / failures) / step_seconds))
    if best / FAR_OFF <= every <= best * FAR_OFF:
        return
    counted = f"{failures} failure{'s' if failures > 1 else ''} in {active} s of training"
    message = f"{every}: saving takes {save:g} s, a step {step_seconds:g} s, {counted}"
    remedy = f"checkpoint.everySteps: {best}"
    yield JobWarning(
        path="spec.checkpoint.everySteps",
        reason=WarningReason.CHECKPOINT_INTERVAL,
        message=f"{message} → {remedy}",
    )


def _list(this: Round, warnings: Sequence[JobWarning], unlisted: int = 0) -> None:
    unique = list({(each.path, each.reason): each for each in warnings}.values())
    count = len(unique) + unlisted
    this.status = replace(this.status, warnings=unique[:MAX_LISTED], warning_count=count)


def _of_check(check: Check) -> JobWarning:
    path = FIELD_OF_CHECK.get(check.id, "spec")
    return JobWarning(path=path, reason=str(check.id), message=one_line(check.evidence, LONGEST))


def _warning(found: Violation) -> JobWarning:
    remedy = f" → {one_line(found.remedy, LONGEST // 2)}"
    message = one_line(found.message, LONGEST - len(remedy)) + remedy
    return JobWarning(path=one_line(found.path, 128), reason=str(found.reason), message=message)
