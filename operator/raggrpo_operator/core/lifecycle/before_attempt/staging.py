"""Staging: download models and data once per set of sources, before preflight. Pure."""

from dataclasses import replace

from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import ConditionType
from raggrpo_api.status.reasons import ConditionReason
from raggrpo_api.trainer.staging import TRANSIENT_REASONS, StagingResult, progress_text
from raggrpo_operator.core.lifecycle.actions import DeleteStaging, StartStaging
from raggrpo_operator.core.lifecycle.deadlines import outages
from raggrpo_operator.core.lifecycle.observed import StagingObserved
from raggrpo_operator.core.lifecycle.round import POLL_SECONDS, Decision, Round
from raggrpo_operator.core.spec.sources import (
    request_hash,
    staging_request,
    staging_status,
    with_variables,
)
from raggrpo_operator.core.state.conditions import Reason

from .preflight import (
    MAX_PREFLIGHT_LOSSES,
    fail_before_attempt,
    remaining_wait,
    wait_for_services,
)


def run_staging(this: Round) -> Decision | None:
    """Stage the sources of the job; return None once all files are on the volume."""
    in_pods = this.observed.in_pods
    request = staging_request(this.spec, this.status.staging, use_hub_cache=not in_pods)
    observed = this.observed.staging
    expected = request_hash(this.spec) if request is not None else ""
    if request is None or this.status.staging.request_hash == expected:
        if observed is not None:
            this.actions.append(DeleteStaging())
        return None
    if (wait := remaining_wait(this, ConditionType.SOURCES_STAGED)) > 0:
        return this.decision(wait + 0.1)
    if observed is not None and observed.request_hash == expected:
        if observed.result is not None:
            return _evaluate(this, observed.result)
        if (decision := _restart_or_fail(this, observed)) is not None:
            return decision
        _report(this, observed)
        return this.decision(requeue_after=POLL_SECONDS if in_pods else 0.5)
    if observed is not None:  # of an earlier request
        this.actions.append(DeleteStaging())
    this.set_condition(ConditionType.SOURCES_STAGED, None, ConditionReason.STAGING)
    this.actions.append(StartStaging(this.pod_plan(), request, expected))
    return this.decision(requeue_after=1.0)


def _report(this: Round, observed: StagingObserved) -> None:
    """Report the progress, or why staging has not started."""
    message = progress_text(observed.progress) if observed.progress else observed.waiting_for
    reason = observed.waiting_reason if observed.waiting_for else ConditionReason.STAGING
    this.set_condition(ConditionType.SOURCES_STAGED, None, reason, message)


def _restart_or_fail(this: Round, observed: StagingObserved) -> Decision | None:
    """Handle staging that ended without a result; return None if it has not ended."""
    if not observed.problem:
        return None
    losses = this.state.retry.preflight_losses + 1
    this.store(replace(this.state.retry, preflight_losses=losses))
    if observed.cannot_start or losses > MAX_PREFLIGHT_LOSSES:
        cause = Cause.START_FAILED if observed.cannot_start else Cause.STAGING_FAILED
        return _fail(this, cause, ConditionReason.NO_RESULT, observed.problem)
    this.set_condition(
        ConditionType.SOURCES_STAGED, None, ConditionReason.STAGING, observed.problem
    )
    this.actions.append(DeleteStaging())
    return this.decision(requeue_after=POLL_SECONDS)


def _evaluate(this: Round, result: StagingResult) -> Decision:
    """Record the staged sources, wait for a server, or fail with the message of every source."""
    this.store(replace(this.state.retry, preflight_losses=0))
    this.actions.append(DeleteStaging())
    message = "\n".join(
        with_variables(this.spec, failure.reason, failure.message) for failure in result.failures
    )
    if not result.failures:
        outages.clear_waiting(this, ConditionReason.ENDPOINT_RECOVERED)
        this.store(outages.reset_timer(this.state.watch))
        this.status = replace(this.status, staging=staging_status(this.spec, result.staged))
        places = "\n".join(f"{each.field}: revision {each.revision}" for each in result.staged)
        this.set_condition(ConditionType.SOURCES_STAGED, True, ConditionReason.STAGED, places)
        return this.decision(requeue_after=0.0)
    if all(failure.reason in TRANSIENT_REASONS for failure in result.failures):
        return wait_for_services(this, ConditionType.SOURCES_STAGED, message)
    return _fail(this, Cause.STAGING_FAILED, result.failures[0].reason, message)


def _fail(this: Round, cause: Cause, reason: Reason, message: str) -> Decision:
    this.set_condition(ConditionType.SOURCES_STAGED, False, reason, message)
    return fail_before_attempt(this, cause, message)
